/* Compiled kernels over stored rows: read and decode them, apply recorded changes and evaluate.

   A window of every model is read from its file into the second cache, and a chunk of it stays in the first
   cache from its stored bits to the result. Each kernel gives the same bytes as the torch and NumPy code that
   it replaces: products and sums are rounded one by one, and together only where `fused` is written.

   The file is compiled once for each level of the processor, with LEVEL as the end of every name, and once
   without LEVEL, which gives the functions that choose a level. `build.py` does that, and `row_kernels.py`
   has the structures and the arguments once more. */

#ifndef LEVEL

const char *emberge_source(void) { return SOURCE; }

/* Return the last level that was compiled and that this processor and its system have; "" if it has none. */
const char *emberge_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
          && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")))
        return "";
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl"))
        return "v4";
    return "v3";
#else
    return "arm64";
#endif
}

#else

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __FMA__
#include <immintrin.h>
#endif

#define JOIN_NAMES(name, level) emberge_##name##_##level
#define JOIN(name, level) JOIN_NAMES(name, level)
#define KERNEL(name) JOIN(name, LEVEL)
#define INLINE static inline __attribute__((always_inline))
#define fused(a, b, c) __builtin_fmaf(a, b, c)
/* Do `WORK(few)` with a number of models up to MOST_IN_REGISTERS as a constant, so that sums stay in registers. */
#define FOR_FEW(models, WORK)                                                                               \
    switch (models) {                                                                                       \
    case 1: WORK(1); break;                                                                                 \
    case 2: WORK(2); break;                                                                                 \
    case 3: WORK(3); break;                                                                                 \
    case 4: WORK(4); break;                                                                                 \
    }

/* Indices are unsigned and as wide as a pointer. */
typedef size_t index_t;

enum {
    CHUNK = 1024,
    /* Numbers of a model that are read from its file at once, a multiple of a chunk. */
    WINDOW = 1 << 16,
    /* The order of sums, as in `row_kernels.py`. */
    LANES = 1 << 10,
    SUM_STRETCH = 1 << 16,
    GRAM_LANES = 1 << 8,
    MOST_IN_REGISTERS = 4,
    /* Rows from NARROW on have bins of magnitudes, 32 an octave; those from WIDE on have 128 an octave. */
    NARROW = 256,
    WIDE = 4096,
    FEW_BINS = 1 << 8,
    MANY_BINS = 1 << 10,
    FEW_SHIFT = 18,
    MANY_SHIFT = 16,
    /* A row's mean magnitude is that of the first 16 of so many values, an odd multiple of 16: so the sample has
       values of all places where rows repeat themselves, as heads of attention do. */
    SAMPLED = 112,
    /* Values whose bounds are looked up before they are compared. */
    COMPARED = 512,
    /* Positions that are hashed at once, for all models. */
    HASHED = 1 << 14,
    /* The memory of a chunk: the base, three temporary rows, and every model's row. */
    FIRST_MODEL = 4,
    ALIGNED = 64
};
/* States of a model's rows, as in `stored_rows`; those that were not read have a lower one. */
enum { USABLE, UNUSABLE, UNREADABLE };
enum { BFLOAT16, FLOAT16, FLOAT32 };
/* The use of the base, as in `BaseUse` of `row_kernels.py`. */
enum { WITHOUT_BASE, MINUS_BASE, BASE_KNOWN };
enum { KEEP, UNDO, DROP, SCALE, DIVIDE, VARIANCE, SELECT, DRAWN };
enum { NO_MEMORY = -1 };

#define MAGNITUDE 0x7FFFFFFF

/* Where the rows of a model are: numbers of a kind in memory, from index `start` on, or in an open file from byte
   `position` on. Rows without a file have the handle -1. `number` is the model's index in `states`. */
typedef struct {
    int64_t kind, start, handle, position, number;
} Place;

/* Rows of the models and, as the last place, of the base, with recorded changes: their codes, [changes, models]
   numbers, and [changes, models, 3] integers. `start` is the position of the first number in the tensor. */
typedef struct {
    void *memory, *base_memory;
    const Place *places;
    int64_t *states;
    int64_t models;
    int64_t base_use;
    int64_t is_checked, size;
    const int64_t *codes;
    const float *numbers;
    const int64_t *integers;
    int64_t changes, start;
} Rows;

/* Memory of one call. `left` has the number of ties that each limit may still keep. */
typedef struct {
    float *work;
    uint32_t *hashes;
    int64_t *left;
    void *allocated;
} Memory;

INLINE uint32_t word_of(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    return word;
}

INLINE float float_of(uint32_t word)
{
    float value;
    memcpy(&value, &word, 4);
    return value;
}

INLINE int32_t pattern_of(float value) { return (int32_t)(word_of(value) & MAGNITUDE); }
INLINE float widen(uint16_t half) { return float_of((uint32_t)half << 16); }
/* Return a number as bfloat16, rounded to nearest, ties to even; NaN stays NaN. */
INLINE uint16_t narrow(float value)
{
    uint32_t word = word_of(value);
    uint32_t rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16;
    return (uint16_t)((word & MAGNITUDE) > 0x7F800000u ? 0x7FC0u : rounded);
}
INLINE index_t least_of(index_t a, index_t b) { return a < b ? a : b; }
INLINE float *row_of(const Memory *memory, index_t m)
{
    return __builtin_assume_aligned(memory->work + (FIRST_MODEL + m) * CHUNK, ALIGNED);
}
INLINE float *temporary(const Memory *memory, index_t number)
{
    return __builtin_assume_aligned(memory->work + number * CHUNK, ALIGNED);
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    return posix_memalign(&memory, ALIGNED, bytes ? bytes : ALIGNED) ? NULL : memory;
}

/* ── a window of rows ─────────────────────────────────────────────────────────────────────────── */

/* Fill the memory with the bytes of an open file from a position on; return whether there are as many. */
static int read_bytes(void *memory, size_t size, int handle, int64_t position)
{
    size_t done = 0;
    while (done < size) {
        ssize_t count = pread(handle, (char *)memory + done, size - done, (off_t)(position + (int64_t)done));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        done += (size_t)count;
    }
    return 1;
}

/* Return whether stored numbers are neither NaN nor too large.

   `distance` is that of the least magnitude that is too large from the sign bit, into which a sum with such a
   magnitude carries. */
INLINE int halves_are_usable(const uint16_t *restrict half, index_t count, uint16_t distance)
{
    uint16_t seen = 0;
    for (index_t i = 0; i < count; i++)
        seen |= (uint16_t)((half[i] & 0x7FFF) + distance);
    return !(seen & 0x8000);
}

static int numbers_are_usable(int64_t kind, const void *memory, index_t count)
{
    if (kind == FLOAT32) {
        const float *restrict single = memory;
        uint32_t seen = 0;
        for (index_t i = 0; i < count; i++)
            seen |= (word_of(single[i]) & MAGNITUDE) + 0x20800000u;
        return !(seen & 0x80000000u);
    }
    if (kind == FLOAT16)
        return halves_are_usable(memory, count, 0x0400);
    return halves_are_usable(memory, count, 0x2080);
}

/* Return the address of the stored number `at` of memory. */
INLINE char *address(void *memory, int64_t kind, index_t at)
{
    return (char *)memory + at * (kind == FLOAT32 ? 4 : 2);
}

/* Read the numbers of a window, and return their state. */
static int64_t fill(void *memory, int64_t kind, index_t count, int64_t handle, int64_t position, int64_t is_checked)
{
    if (!read_bytes(memory, count * (kind == FLOAT32 ? 4 : 2), (int)handle, position))
        return UNREADABLE;
    return !is_checked || numbers_are_usable(kind, memory, count) ? USABLE : UNUSABLE;
}

/* Return the address from which on the numbers of a model or, last, of the base are stored. */
INLINE char *begin_of(const Rows *rows, index_t m)
{
    void *memory = m < (index_t)rows->models ? rows->memory : rows->base_memory;
    return address(memory, rows->places[m].kind, (index_t)rows->places[m].start);
}

/* Read the next window of all rows that are in files, if one begins at index `first`. */
static void fill_windows(const Rows *rows, index_t first)
{
    if (first % WINDOW)
        return;
    index_t count = least_of(WINDOW, (index_t)rows->size - first);
    index_t all = (index_t)rows->models + (rows->base_use != WITHOUT_BASE);
    for (index_t m = 0; m < all; m++) {
        if (rows->places[m].handle < 0)
            continue;
        int64_t kind = rows->places[m].kind;
        int64_t position = rows->places[m].position + (int64_t)first * (kind == FLOAT32 ? 4 : 2);
        int64_t state = fill(begin_of(rows, m), kind, count, rows->places[m].handle, position, rows->is_checked);
        int64_t *known = &rows->states[rows->places[m].number];
        if (state > *known)
            *known = state;
    }
}

/* Return the address of the number with index `first`, of a model or, last, of the base. */
INLINE const void *locate(const Rows *rows, index_t m, index_t first)
{
    index_t at = rows->places[m].handle >= 0 ? first % WINDOW : first;
    return address(begin_of(rows, m), rows->places[m].kind, at);
}

/* ── a chunk of rows ──────────────────────────────────────────────────────────────────────────── */

/* Return a float16 number. A product rebases its exponent, which gives subnormal numbers too. */
INLINE float widen_half(uint16_t half)
{
    float value = float_of((uint32_t)(half & 0x7FFF) << 13) * 0x1p112f;
    uint32_t special = (half & 0x7C00) == 0x7C00 ? 0x7F800000u : 0;
    return float_of(word_of(value) | special | (uint32_t)(half & 0x8000) << 16);
}

/* Write stored numbers into `into`, as float32. */
static void decode_numbers(int64_t kind, const void *stored, index_t count, float *restrict into)
{
    const uint16_t *restrict half = stored;
    if (kind == FLOAT32) {
        memcpy(into, stored, count * 4);
    } else if (kind == BFLOAT16) {
        for (index_t i = 0; i < count; i++)
            into[i] = widen(half[i]);
    } else {
        for (index_t i = 0; i < count; i++)
            into[i] = widen_half(half[i]);
    }
}

static void encode_numbers(const float *restrict values, index_t count, uint16_t *restrict into)
{
    for (index_t i = 0; i < count; i++)
        into[i] = narrow(values[i]);
}

static void subtract(float *restrict values, const float *restrict base, index_t count)
{
    for (index_t i = 0; i < count; i++)
        values[i] -= base[i];
}

/* Zero the values below a limit or, with `undo`, subtract those at and above it from themselves. */
INLINE void keep_from(float *restrict values, index_t count, int32_t least, int undo)
{
    if (undo) {
        for (index_t i = 0; i < count; i++) {
            float value = values[i];
            values[i] = pattern_of(value) >= least ? value - value : value;
        }
    } else {
        for (index_t i = 0; i < count; i++) {
            float value = values[i];
            values[i] = pattern_of(value) >= least ? value : 0.0f;
        }
    }
}

/* Zero the values below a limit (or at and above it); return the number of ties that are left to keep. */
static int64_t keep(
    float *restrict values, index_t count, int64_t first, const int64_t integers[3], int64_t quota, int undo)
{
    int64_t low = integers[0], row = integers[1];
    if (first + (int64_t)count <= row || quota == 0) {
        keep_from(values, count, (int32_t)(first + (int64_t)count <= row ? low : low + 1), undo);
        return quota;
    }
    /* Most chunks have no more ties than may be kept. */
    int32_t ties = 0;
    for (index_t i = 0; i < count; i++)
        ties += pattern_of(values[i]) == (int32_t)low && first + (int64_t)i >= row;
    if (ties <= quota) {
        keep_from(values, count, (int32_t)low, undo);
        return quota - ties;
    }
    for (index_t i = 0; i < count; i++) {
        int32_t pattern = pattern_of(values[i]);
        int stays = pattern > low;
        if (pattern == low) {
            stays = first + (int64_t)i < row || quota > 0;
            if (first + (int64_t)i >= row && quota > 0)
                quota--;
        }
        if (undo && stays)
            values[i] = values[i] - values[i];
        else if (!undo && !stays)
            values[i] = 0.0f;
    }
    return quota;
}

/* Fill `hashes` with hashes of the positions from `first` on; the hash is that of `numerics.noise`. */
static void hash_positions(uint32_t first, index_t count, uint32_t *restrict hashes)
{
    for (index_t i = 0; i < count; i++) {
        uint32_t word = (first + 1 + (uint32_t)i) * 0x9E3779B9u;
        word = (word ^ word >> 16) * 0x21F0AAADu;
        word = (word ^ word >> 15) * 0xD35A2D97u;
        hashes[i] = word ^ word >> 15;
    }
}

INLINE float number_of(uint32_t place, uint32_t first, uint32_t second)
{
    uint32_t word = place * first;
    word = (word ^ word >> 16) * second;
    return (float)(int32_t)(word >> 8) * 0x1p-24f;
}

static void drop(float *restrict values, const uint32_t *restrict hashes, const int64_t integers[3], float density)
{
    uint32_t first = (uint32_t)integers[0], second = (uint32_t)integers[1];
    for (index_t i = 0; i < CHUNK; i++)
        values[i] = (number_of(hashes[i], first, second) < density ? 1.0f : 0.0f) * values[i];
}

/* Write the variance over models into temporary row 2, rounded step by step as torch does. */
static void compute_variance(const Memory *memory, index_t models, float share)
{
    const float *restrict row = row_of(memory, 0);
    float *restrict mean = temporary(memory, 1), *restrict into = temporary(memory, 2);
    for (index_t i = 0; i < CHUNK; i++) {
        mean[i] = row[i] * share;
        into[i] = 0.0f;
    }
    for (index_t m = 1; m < models; m++) {
        row = row_of(memory, m);
        for (index_t i = 0; i < CHUNK; i++)
            mean[i] = fused(row[i], share, mean[i]);
    }
    for (index_t m = 0; m < models; m++) {
        row = row_of(memory, m);
        for (index_t i = 0; i < CHUNK; i++) {
            float deviation = row[i] - mean[i];
            into[i] = fused(deviation * deviation, share, into[i]);
        }
    }
}

static void zero_rest(float *values, index_t count)
{
    if (count < CHUNK)
        memset(values + count, 0, (CHUNK - count) * sizeof *values);
}

/* Write a chunk's values before their changes into the models' rows, and the base into row 0.

   If the last chunk is shorter, the remaining elements are zero. */
static void load_unchanged(const Rows *rows, index_t first, index_t count, const Memory *memory)
{
    index_t models = (index_t)rows->models;
    float *base = temporary(memory, 0);
    fill_windows(rows, first);
    if (rows->base_use) {
        decode_numbers(rows->places[models].kind, locate(rows, models, first), count, base);
        zero_rest(base, count);
    }
    for (index_t m = 0; m < models; m++) {
        float *row = row_of(memory, m);
        decode_numbers(rows->places[m].kind, locate(rows, m, first), count, row);
        if (rows->base_use == MINUS_BASE)
            subtract(row, base, count);
        zero_rest(row, count);
    }
}

static void select_varied(
    const Memory *memory, index_t models, int64_t first, const int64_t integers[3], int64_t *left, float share)
{
    compute_variance(memory, models, share);
    *left = keep(temporary(memory, 2), CHUNK, first, integers, *left, 0);
    const float *restrict selection = temporary(memory, 2);
    for (index_t m = 0; m < models; m++) {
        float *restrict row = row_of(memory, m);
        for (index_t i = 0; i < CHUNK; i++)
            row[i] *= selection[i] > 0.0f ? 1.0f : 0.0f;
    }
}

typedef uint32_t EightWords __attribute__((vector_size(32)));
typedef float EightNumbers __attribute__((vector_size(32)));

/* Multiply eight values by the bits of a byte, the lowest first. */
INLINE void keep_eight(float *values, uint32_t byte)
{
    const EightWords bit_values = {1, 2, 4, 8, 16, 32, 64, 128};
    EightWords ones = (EightWords)((bit_values & byte) != 0) & 0x3F800000u;
    EightNumbers numbers;
    memcpy(&numbers, values, sizeof numbers);
    numbers *= (EightNumbers)ones;
    memcpy(values, &numbers, sizeof numbers);
}

/* Zero the values of a row whose bits are 0; `first` is the place of the first value among all values.

   `integers` are the address of the bits, the values in a row of the tensor, and the bytes of its bits. */
static void keep_drawn(float *restrict row, index_t first, index_t count, const int64_t integers[3])
{
    index_t width = (index_t)integers[1];
    for (index_t i = 0; i < count;) {
        index_t tensor_row = (first + i) / width, at = (first + i) % width;
        index_t end = i + least_of(width - at, count - i);
        const uint8_t *bits = (const uint8_t *)(uintptr_t)integers[0] + tensor_row * (index_t)integers[2];
        for (; i < end && at % 8; i++, at++)
            row[i] *= bits[at / 8] >> at % 8 & 1 ? 1.0f : 0.0f;
        for (; i + 8 <= end; i += 8, at += 8)
            keep_eight(row + i, bits[at / 8]);
        for (; i < end; i++, at++)
            row[i] *= bits[at / 8] >> at % 8 & 1 ? 1.0f : 0.0f;
    }
}

static void change_row(
    int64_t code, float *restrict row, int64_t first, const int64_t integers[3], int64_t *left, float number,
    const uint32_t *hashes)
{
    if (code == KEEP || code == UNDO) {
        *left = keep(row, CHUNK, first, integers, *left, code == UNDO);
    } else if (code == DROP) {
        drop(row, hashes, integers, number);
    } else if (code == SCALE) {
        for (index_t i = 0; i < CHUNK; i++)
            row[i] *= number;
    } else if (code == DIVIDE) {
        for (index_t i = 0; i < CHUNK; i++)
            row[i] /= number;
    }
}

/* Return whether all rows, and the base if it is known, are stored in bfloat16. */
static int are_halves(const Rows *rows)
{
    int others = 0;
    for (index_t m = 0; m < (index_t)rows->models + (rows->base_use != WITHOUT_BASE); m++)
        others |= rows->places[m].kind != BFLOAT16;
    return !others;
}

/* Write the addresses of the models' numbers with index `first`, and last of the base's if it is known. */
INLINE void locate_all(const Rows *rows, index_t first, const void **addresses)
{
    index_t all = (index_t)rows->models + (rows->base_use != WITHOUT_BASE);
    for (index_t m = 0; m < all; m++)
        addresses[m] = locate(rows, m, first);
}

/* Compute the variance of a few models' deltas in registers, as `compute_variance` does.

   With `selects`, the models' rows receive the deltas, those whose variance is below `least` as zeros with their
   sign, and row 0 the base. Otherwise the first model's row receives the variance. */
INLINE void load_varied_few(
    const void *const *stored, const index_t models, const int selects, int32_t least, float share, index_t count,
    const Memory *memory)
{
    const uint16_t *const *halves = (const uint16_t *const *)stored;
    float *restrict base = temporary(memory, 0), *restrict row = row_of(memory, 0);
    for (index_t i = 0; i < count; i++) {
        float origin = widen(halves[models][i]), variance = 0.0f;
        float mean = (widen(halves[0][i]) - origin) * share;
        for (index_t m = 1; m < models; m++)
            mean = fused(widen(halves[m][i]) - origin, share, mean);
        for (index_t m = 0; m < models; m++) {
            float deviation = widen(halves[m][i]) - origin - mean;
            variance = fused(deviation * deviation, share, variance);
        }
        base[i] = origin;
        if (selects) {
            float factor = pattern_of(variance) >= least ? 1.0f : 0.0f;
            for (index_t m = 0; m < models; m++)
                row[m * CHUNK + i] = (widen(halves[m][i]) - origin) * factor;
        } else {
            row[i] = variance;
        }
    }
    zero_rest(base, count);
    for (index_t m = 0; m < (selects ? models : 1); m++)
        zero_rest(row + m * CHUNK, count);
}

/* Load a chunk with its first change if that needs the variance of a few models in bfloat16; return whether.

   A chunk in which ties with the limit have to be counted is left to `select_varied`. */
static int load_varied(const Rows *rows, index_t first, index_t count, const Memory *memory)
{
    index_t models = (index_t)rows->models;
    int selects = rows->changes && rows->codes[0] == SELECT;
    if (!selects && !(rows->changes && rows->codes[0] == VARIANCE))
        return 0;
    int64_t low = rows->integers[0], end = rows->start + (int64_t)first + CHUNK;
    int comes_before_ties = end <= rows->integers[1];
    if (selects && !comes_before_ties && memory->left[0] != 0)
        return 0;
    if (rows->base_use != MINUS_BASE || models < 2 || models > MOST_IN_REGISTERS || !are_halves(rows))
        return 0;
    int64_t wanted = comes_before_ties ? low : low + 1;
    int32_t least = (int32_t)(wanted > 1 ? wanted : 1);
    const void *stored[MOST_IN_REGISTERS + 1];
    fill_windows(rows, first);
    locate_all(rows, first, stored);
    float share = rows->numbers[0];
#define LOAD_VARIED(few)                                                                                    \
    if (selects)                                                                                            \
        load_varied_few(stored, few, 1, least, share, count, memory);                                       \
    else                                                                                                    \
        load_varied_few(stored, few, 0, least, share, count, memory)
    FOR_FEW(models, LOAD_VARIED)
    return 1;
}

/* Make the recorded changes of a chunk's values, and return the number of rows.

   `done` is 1 if the first change was done when the chunk was loaded, otherwise 0. */
static index_t change(const Rows *rows, index_t first, const Memory *memory, int done)
{
    index_t all = (index_t)rows->models, models = done && rows->codes[0] == VARIANCE ? 1 : all;
    int64_t position = rows->start + (int64_t)first;
    for (index_t k = (index_t)done; k < (index_t)rows->changes; k++) {
        int64_t code = rows->codes[k];
        const float *numbers = rows->numbers + k * all;
        const int64_t *integers = rows->integers + 3 * k * all;
        int64_t *left = memory->left + k * all;
        if (code == VARIANCE) {
            compute_variance(memory, models, numbers[0]);
            memcpy(row_of(memory, 0), temporary(memory, 2), CHUNK * sizeof(float));
            models = 1;
        } else if (code == SELECT) {
            select_varied(memory, models, position, integers, left, numbers[0]);
        } else if (code == DRAWN) {
            for (index_t m = 0; m < models; m++)
                keep_drawn(row_of(memory, m), first, least_of(CHUNK, (index_t)rows->size - first), integers + 3 * m);
        } else {
            if (code == DROP)
                hash_positions((uint32_t)position, CHUNK, memory->hashes);
            for (index_t m = 0; m < models; m++)
                change_row(code, row_of(memory, m), position, integers + 3 * m, left + m, numbers[m], memory->hashes);
        }
    }
    return models;
}

/* Write a chunk's changed values into the models' rows, the base into row 0; return the number of rows. */
static index_t load(const Rows *rows, index_t first, index_t count, const Memory *memory)
{
    int done = load_varied(rows, first, count, memory);
    if (!done)
        load_unchanged(rows, first, count, memory);
    return change(rows, first, memory, done);
}

/* Allocate the memory of a call with `more` bytes at its end, and return those; NULL if there is none. */
static void *begin(const Rows *rows, size_t more, Memory *memory)
{
    index_t limits = (index_t)(rows->changes * rows->models);
    size_t work = ((size_t)rows->models + FIRST_MODEL) * CHUNK * sizeof(float);
    size_t hashes = CHUNK * sizeof(uint32_t);
    size_t left = (limits * sizeof(int64_t) + ALIGNED - 1) / ALIGNED * ALIGNED;
    char *allocated = allocate(work + hashes + left + more);
    memory->allocated = allocated;
    if (!allocated)
        return NULL;
    memory->work = (float *)allocated;
    memory->hashes = (uint32_t *)(allocated + work);
    memory->left = (int64_t *)(allocated + work + hashes);
    for (index_t n = 0; n < limits; n++) {
        const int64_t *integers = rows->integers + 3 * n;
        memory->left[n] = integers[1] >= rows->start ? integers[2] : 0;
    }
    return allocated + work + hashes + left;
}

/* ── evaluations ──────────────────────────────────────────────────────────────────────────────── */

/* Write a chunk's changed values into `out`, where the rows begin `stride` numbers apart; return their number. */
static index_t load_into(
    const Rows *rows, index_t first, index_t count, const Memory *memory, float *out,
    index_t stride)
{
    index_t models = load(rows, first, count, memory);
    for (index_t m = 0; m < models; m++)
        memcpy(out + m * stride, row_of(memory, m), count * sizeof(float));
    return models;
}

/* Write the changed values into `out` [rows, size]. */
int KERNEL(decode)(const Rows *rows, float *out)
{
    Memory memory;
    if (!begin(rows, 0, &memory))
        return NO_MEMORY;
    index_t size = (index_t)rows->size;
    for (index_t first = 0; first < size; first += CHUNK)
        load_into(rows, first, least_of(CHUNK, size - first), &memory, out + first, size);
    free(memory.allocated);
    return 0;
}

/* Write results into `out` [count] as numbers of this kind, float32 or bfloat16. */
INLINE void write_numbers(const float *values, index_t count, int64_t kind, void *out)
{
    if (kind == BFLOAT16)
        encode_numbers(values, count, out);
    else
        memcpy(out, values, count * sizeof *values);
}

/* Return whether all rows, and the base if it is known, are stored in bfloat16 and are not changed. */
static int are_plain_halves(const Rows *rows) { return !rows->changes && are_halves(rows); }

/* Write the sums of a few models' numbers or, with `with_base`, the base plus the sums of their differences from it. */
INLINE void combine_few(
    const void *const *stored, const index_t models, const int with_base, const float *factors, index_t count,
    uint16_t *restrict out)
{
    const uint16_t *const *halves = (const uint16_t *const *)stored;
    for (index_t i = 0; i < count; i++) {
        float base = with_base ? widen(halves[models][i]) : 0.0f;
        /* The sum of a product and -0 is the product, whatever its sign. */
        float total = -0.0f;
        for (index_t m = 0; m < models; m++)
            total = fused(with_base ? widen(halves[m][i]) - base : widen(halves[m][i]), factors[m], total);
        out[i] = narrow(with_base ? total + base : total);
    }
}

/* Combine a chunk of plain numbers in bfloat16 in registers; return whether it could be done. */
static int combine_halves(
    const Rows *rows, index_t first, const float *factors, int64_t add_base, index_t count, uint16_t *out)
{
    const void *stored[MOST_IN_REGISTERS + 1];
    if (rows->models > MOST_IN_REGISTERS || (rows->base_use && !(rows->base_use == MINUS_BASE && add_base)))
        return 0;
    fill_windows(rows, first);
    locate_all(rows, first, stored);
#define COMBINE(few)                                                                                        \
    if (rows->base_use)                                                                                     \
        combine_few(stored, few, 1, factors, count, out);                                                   \
    else                                                                                                    \
        combine_few(stored, few, 0, factors, count, out)
    FOR_FEW(rows->models, COMBINE)
    return 1;
}

/* Write the sum of coefficient × values, in model order, and the base if asked for, into `out` [size].

   The results are numbers of this kind, float32 or bfloat16. */
int KERNEL(combine)(const Rows *rows, const float *coefficients, int64_t add_base, int64_t kind, void *out)
{
    Memory memory;
    if (!begin(rows, 0, &memory))
        return NO_MEMORY;
    index_t size = (index_t)rows->size;
    int is_plain = kind == BFLOAT16 && are_plain_halves(rows);
    const float *restrict base = temporary(&memory, 0);
    float *restrict total = temporary(&memory, 1);
    for (index_t first = 0; first < size; first += CHUNK) {
        index_t count = least_of(CHUNK, size - first);
        void *into = address(out, kind, first);
        if (is_plain && combine_halves(rows, first, coefficients, add_base, count, into))
            continue;
        index_t models = load(rows, first, count, &memory);
        /* The sum of a product and -0 is the product, whatever its sign. */
        for (index_t i = 0; i < CHUNK; i++)
            total[i] = -0.0f;
        for (index_t m = 0; m < models; m++) {
            const float *restrict row = row_of(&memory, m);
            float factor = coefficients[m];
            for (index_t i = 0; i < CHUNK; i++)
                total[i] = fused(row[i], factor, total[i]);
        }
        for (index_t i = 0; add_base && i < count; i++)
            total[i] += base[i];
        write_numbers(total, count, kind, into);
    }
    free(memory.allocated);
    return 0;
}

/* An election of signs: factors of the models' values in it and in the mean.

   `least` is the smallest divisor of a mean. If it is below zero, a divisor of zero is replaced by one. */
typedef struct {
    const float *votes, *weights;
    float least, scale;
    int64_t normalize;
} Election;

/* Return a sum divided by its weights. */
INLINE float divide(float total, float divisor, float least, const int replaces_zero)
{
    if (replaces_zero)
        return total / (divisor + (divisor == 0.0f ? 1.0f : 0.0f));
    return total / (divisor > least ? divisor : least);
}

/* Write `base` + scale × the mean of a few models' values with the elected sign; sums stay in registers. */
INLINE void elect_few(
    const Memory *memory, const index_t models, const Election *election, const int normalize, const int replaces_zero,
    float *restrict out)
{
    const float *restrict rows = row_of(memory, 0), *restrict base = temporary(memory, 0);
    float votes[MOST_IN_REGISTERS], weights[MOST_IN_REGISTERS], signs[MOST_IN_REGISTERS];
    float least = election->least, scale = election->scale;
    for (index_t m = 0; m < models; m++) {
        votes[m] = election->votes[m];
        weights[m] = election->weights[m];
        signs[m] = weights[m] > 0.0f ? 1.0f : -1.0f;
    }
    for (index_t i = 0; i < CHUNK; i++) {
        float elected = rows[i] * votes[0], total = 0.0f, divisor = 0.0f;
        for (index_t m = 1; m < models; m++)
            elected = fused(rows[m * CHUNK + i], votes[m], elected);
        float half = elected >= 0.0f ? 0.5f : -0.5f;
        for (index_t m = 0; m < models; m++) {
            float value = rows[m * CHUNK + i], agrees = value * half * signs[m] > 0.0f ? 1.0f : 0.0f;
            total = fused(weights[m] * agrees, value, total);
            divisor = fused(agrees, weights[m], divisor);
        }
        if (normalize)
            total = divide(total, divisor, least, replaces_zero);
        out[i] = fused(total, scale, base[i]);
    }
}

/* Write the same for any number of models. */
static void elect_many(const Memory *memory, index_t models, const Election *election, float *restrict out)
{
    const float *restrict row = row_of(memory, 0), *restrict base = temporary(memory, 0);
    float *restrict elected = temporary(memory, 1), *restrict divisor = temporary(memory, 3);
    for (index_t i = 0; i < CHUNK; i++)
        elected[i] = row[i] * election->votes[0];
    for (index_t m = 1; m < models; m++) {
        float vote = election->votes[m];
        row = row_of(memory, m);
        for (index_t i = 0; i < CHUNK; i++)
            elected[i] = fused(row[i], vote, elected[i]);
    }
    for (index_t i = 0; i < CHUNK; i++) {
        elected[i] = elected[i] >= 0.0f ? 0.5f : -0.5f;
        out[i] = 0.0f;
        divisor[i] = 0.0f;
    }
    for (index_t m = 0; m < models; m++) {
        float weight = election->weights[m], sign = weight > 0.0f ? 1.0f : -1.0f;
        row = row_of(memory, m);
        for (index_t i = 0; i < CHUNK; i++) {
            float agrees = row[i] * elected[i] * sign > 0.0f ? 1.0f : 0.0f;
            out[i] = fused(weight * agrees, row[i], out[i]);
            divisor[i] = fused(agrees, weight, divisor[i]);
        }
    }
    float least = election->least;
    if (election->normalize && least < 0.0f) {
        for (index_t i = 0; i < CHUNK; i++)
            out[i] = divide(out[i], divisor[i], least, 1);
    } else if (election->normalize) {
        for (index_t i = 0; i < CHUNK; i++)
            out[i] = divide(out[i], divisor[i], least, 0);
    }
    for (index_t i = 0; i < CHUNK; i++)
        out[i] = fused(out[i], election->scale, base[i]);
}

/* Write base + scale × the mean of a chunk's values with the elected sign into `out` [CHUNK]. */
static void elect_chunk(const Memory *memory, index_t models, const Election *election, float *out)
{
    if (models > MOST_IN_REGISTERS) {
        elect_many(memory, models, election, out);
        return;
    }
#define ELECT(few)                                                                                          \
    if (!election->normalize)                                                                               \
        elect_few(memory, few, election, 0, 0, out);                                                        \
    else if (election->least < 0.0f)                                                                        \
        elect_few(memory, few, election, 1, 1, out);                                                        \
    else                                                                                                    \
        elect_few(memory, few, election, 1, 0, out)
    FOR_FEW(models, ELECT)
}

/* Write base + scale × the mean of the values with the elected sign into `out` [size].

   The results are numbers of this kind, float32 or bfloat16. */
int KERNEL(elect)(
    const Rows *rows, const float *votes, const float *weights, float least,
    int64_t normalize, float scale, int64_t kind, void *out)
{
    Memory memory;
    if (!begin(rows, 0, &memory))
        return NO_MEMORY;
    Election election = {votes, weights, least, scale, normalize};
    index_t size = (index_t)rows->size;
    for (index_t first = 0; first < size; first += CHUNK) {
        index_t count = least_of(CHUNK, size - first);
        index_t models = load(rows, first, count, &memory);
        elect_chunk(&memory, models, &election, temporary(&memory, 2));
        write_numbers(temporary(&memory, 2), count, kind, address(out, kind, first));
    }
    free(memory.allocated);
    return 0;
}

/* Add the lanes of a stretch to `out` in float64, and zero them. */
static void end_stretch(float *restrict lanes, index_t count, double *restrict out)
{
    for (index_t i = 0; i < count; i++) {
        out[i] += (double)lanes[i];
        lanes[i] = 0.0f;
    }
}

/* Add the magnitudes or squares of a chunk to the lanes of a stretch. */
static void add_to_lanes(const Memory *memory, index_t models, int64_t squares, float *sums)
{
    for (index_t m = 0; m < models; m++) {
        const float *restrict row = row_of(memory, m);
        float *restrict lanes = sums + m * LANES;
        if (squares) {
            for (index_t lane = 0; lane < LANES; lane++)
                lanes[lane] += row[lane] * row[lane];
        } else {
            for (index_t lane = 0; lane < LANES; lane++)
                lanes[lane] += __builtin_fabsf(row[lane]);
        }
    }
}

/* Add the magnitudes or squares of each model's values to the lanes `out` [out_rows, LANES] in float64.

   With `before` [before_rows, LANES], those of the values before their changes are added to it. */
int KERNEL(sums)(
    const Rows *rows, int64_t squares, int64_t before_rows, double *before, int64_t out_rows,
    double *out)
{
    Memory memory;
    size_t lanes = (size_t)out_rows * LANES, lanes_before = (size_t)before_rows * LANES;
    float *sums = begin(rows, (lanes + lanes_before) * sizeof(float), &memory);
    if (!sums)
        return NO_MEMORY;
    float *sums_before = sums + lanes;
    memset(sums, 0, (lanes + lanes_before) * sizeof(float));
    index_t size = (index_t)rows->size;
    for (index_t first = 0; first < size; first += CHUNK) {
        int ends_stretch = (first + CHUNK) % SUM_STRETCH == 0 || first + CHUNK >= size;
        index_t count = least_of(CHUNK, size - first);
        if (before_rows) {
            load_unchanged(rows, first, count, &memory);
            add_to_lanes(&memory, (index_t)before_rows, squares, sums_before);
            change(rows, first, &memory, 0);
        } else {
            load(rows, first, count, &memory);
        }
        add_to_lanes(&memory, (index_t)out_rows, squares, sums);
        if (ends_stretch) {
            end_stretch(sums_before, lanes_before, before);
            end_stretch(sums, lanes, out);
        }
    }
    free(memory.allocated);
    return 0;
}

/* Compilers split conversions of vectors into halves where the processor converts all at once. `add_product`
   may round once or twice, as products of float32 numbers are exact in float64. */
#ifdef __AVX512F__
#define FACTORS 8
#define add_product(a, b, sum) _mm512_fmadd_pd(a, b, sum)
#define as_doubles(values) ((doubles)_mm512_cvtps_pd((__m256)(values)))
#define as_words(stored) ((words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i_u *)(stored))))
#elif defined(__FMA__)
#define FACTORS 4
#define add_product(a, b, sum) _mm256_fmadd_pd(a, b, sum)
#define as_doubles(values) ((doubles)_mm256_cvtps_pd((__m128)(values)))
#define as_words(stored) ((words)_mm_cvtepu16_epi32(_mm_loadu_si64(stored)))
#else
#define FACTORS 4
#define add_product(a, b, sum) ((sum) + (a) * (b))
#define as_doubles(values) __builtin_convertvector(values, doubles)
#define as_words(stored) __builtin_convertvector(*(const halves *)(stored), words)
#endif
/* Numbers that are multiplied at once, wherever they are in memory. */
typedef double doubles __attribute__((vector_size(8 * FACTORS), aligned(8)));
typedef float singles __attribute__((vector_size(4 * FACTORS), aligned(4)));
typedef uint32_t words __attribute__((vector_size(4 * FACTORS), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(2 * FACTORS), aligned(2)));

/* Return numbers of this kind, float32 or bfloat16. */
INLINE singles numbers_at(const int kind, const void *row, index_t at)
{
    if (kind == FLOAT32)
        return *(const singles *)((const float *)row + at);
    return (singles)(as_words((const uint16_t *)row + at) << 16);
}

/* Add the products of all pairs (i, j), j <= i, of a chunk's rows to lanes that stay in registers.

   With `with_base` the base's numbers, after the last model's, are subtracted from the models'; with `less_first`
   the first model's values are then subtracted from the other models'. */
INLINE void add_products_of(
    const int kind, const void *const *rows, const index_t models, const int with_base, const int less_first,
    double *lanes)
{
    const index_t pairs = models * (models + 1) / 2;
    for (index_t lane = 0; lane < GRAM_LANES; lane += FACTORS) {
        doubles sums[MOST_IN_REGISTERS * (MOST_IN_REGISTERS + 1) / 2], factors[MOST_IN_REGISTERS];
        for (index_t pair = 0; pair < pairs; pair++)
            sums[pair] = *(const doubles *)(lanes + pair * GRAM_LANES + lane);
        for (index_t at = lane; at < CHUNK; at += GRAM_LANES) {
            doubles *sum = sums;
            singles origin = {0};
            for (index_t m = 0; m < models; m++) {
                singles values = numbers_at(kind, rows[m], at);
                if (with_base)
                    values -= numbers_at(kind, rows[models], at);
                if (m == 0)
                    origin = values;
                else if (less_first)
                    values -= origin;
                factors[m] = as_doubles(values);
            }
            for (index_t i = 0; i < models; i++)
                for (index_t j = 0; j <= i; j++, sum++)
                    *sum = add_product(factors[i], factors[j], *sum);
        }
        for (index_t pair = 0; pair < pairs; pair++)
            *(doubles *)(lanes + pair * GRAM_LANES + lane) = sums[pair];
    }
}

static void add_products_of_two(const float *restrict a, const float *restrict b, double *restrict lanes)
{
    for (index_t at = 0; at < CHUNK; at += GRAM_LANES)
        for (index_t lane = 0; lane < GRAM_LANES; lane++)
            lanes[lane] += (double)a[at + lane] * (double)b[at + lane];
}

static void add_products(const Memory *memory, index_t models, int64_t less_first, double *lanes)
{
    float *rows = row_of(memory, 0);
    const void *decoded[MOST_IN_REGISTERS];
    for (index_t m = 0; m < models && m < MOST_IN_REGISTERS; m++)
        decoded[m] = row_of(memory, m);
    if (models <= MOST_IN_REGISTERS) {
#define ADD_PRODUCTS(few)                                                                                   \
    if (less_first)                                                                                         \
        add_products_of(FLOAT32, decoded, few, 0, 1, lanes);                                                \
    else                                                                                                    \
        add_products_of(FLOAT32, decoded, few, 0, 0, lanes)
        FOR_FEW(models, ADD_PRODUCTS)
        return;
    }
    for (index_t m = 1; less_first && m < models; m++) {
        float *restrict row = rows + m * CHUNK;
        for (index_t i = 0; i < CHUNK; i++)
            row[i] -= rows[i];
    }
    for (index_t i = 0; i < models; i++)
        for (index_t j = 0; j <= i; j++, lanes += GRAM_LANES)
            add_products_of_two(rows + i * CHUNK, rows + j * CHUNK, lanes);
}

/* Add the products of a full chunk of numbers in bfloat16; return whether there were few models. */
static int add_products_of_halves(const Rows *rows, index_t first, int64_t less_first, double *lanes)
{
    const void *stored[MOST_IN_REGISTERS + 1];
    if (rows->models > MOST_IN_REGISTERS)
        return 0;
    fill_windows(rows, first);
    locate_all(rows, first, stored);
#define ADD_HALVES(few)                                                                                     \
    if (rows->base_use == MINUS_BASE && less_first)                                                         \
        add_products_of(BFLOAT16, stored, few, 1, 1, lanes);                                                \
    else if (rows->base_use == MINUS_BASE)                                                                  \
        add_products_of(BFLOAT16, stored, few, 1, 0, lanes);                                                \
    else if (less_first)                                                                                    \
        add_products_of(BFLOAT16, stored, few, 0, 1, lanes);                                                \
    else                                                                                                    \
        add_products_of(BFLOAT16, stored, few, 0, 0, lanes)
    FOR_FEW(rows->models, ADD_HALVES)
    return 1;
}

/* Add the products of the values of all pairs of models (0, 0), (1, 0), (1, 1), (2, 0), … to lanes.

   Lane l of a pair in `out` [pairs, GRAM_LANES] adds the products of elements l, l + GRAM_LANES, …. With
   `less_first` the first model's values are subtracted from the other models' before. `out_rows` is the number
   of models after the changes. */
int KERNEL(gram)(const Rows *rows, int64_t less_first, int64_t out_rows, double *out)
{
    Memory memory;
    if (!begin(rows, 0, &memory))
        return NO_MEMORY;
    index_t size = (index_t)rows->size;
    int is_plain = are_plain_halves(rows) && out_rows == rows->models;
    for (index_t first = 0; first < size; first += CHUNK) {
        index_t count = least_of(CHUNK, size - first);
        if (is_plain && count == CHUNK && add_products_of_halves(rows, first, less_first, out))
            continue;
        index_t models = load(rows, first, count, &memory);
        add_products(&memory, least_of(models, (index_t)out_rows), less_first, out);
    }
    free(memory.allocated);
    return 0;
}

/* ── random drops by rank ─────────────────────────────────────────────────────────────────────── */

/* The probabilities of the lowest and the highest rank that a value may have. */
typedef struct {
    float low, high;
} Bounds;

/* What decides about the values of rows of one width, and memory of one row, which stays in the first cache.

   `bounds` and `counts` are those of each bin, and `bins` those of the row's values. */
typedef struct {
    index_t width, bin_count;
    const float *chances;
    uint32_t first, second;
    uint32_t *hashes;
    Bounds *bounds;
    uint32_t *counts;
    uint16_t *bins;
} Ranking;

/* The arguments of `draw_ranked`, with the position of the first value and the number of rows. */
typedef struct {
    int64_t start;
    index_t rows;
    const float *chances;
    const uint32_t *factors;
    uint8_t *bits;
} Drawn;

/* Write the bin of each value's magnitude, by its pattern's distance from the mean pattern.

   Bins are around the mean of a sample without zeros, so that neither zeros nor outliers leave most of the
   others in one bin. Other bins would change only how many values their ranks must decide. */
static void assign_bins(const Ranking *ranking, const float *restrict row, int shift)
{
    uint16_t *restrict bins = ranking->bins;
    index_t width = ranking->width;
    int64_t total = 0, count = 0, span = (int64_t)(ranking->bin_count - 1) << shift;
    for (index_t first = 0; first + 16 <= width; first += SAMPLED)
        for (index_t i = first; i < first + 16; i++) {
            int32_t pattern = pattern_of(row[i]);
            total += pattern;
            count += pattern != 0;
        }
    int64_t lowest_wanted = total / (count + (count == 0)) - span / 8 * 5;
    int32_t lowest = (int32_t)(lowest_wanted > 0 ? lowest_wanted : 0);
    int64_t highest_wanted = lowest + span;
    int32_t highest = (int32_t)(highest_wanted < MAGNITUDE ? highest_wanted : MAGNITUDE);
    for (index_t i = 0; i < width; i++) {
        int32_t pattern = pattern_of(row[i]);
        pattern = pattern > lowest ? pattern : lowest;
        bins[i] = (uint16_t)(((pattern < highest ? pattern : highest) - lowest) >> shift);
    }
}

/* Write the probabilities of the lowest and the highest rank in each bin. */
static void bound_chances(const Ranking *ranking)
{
    uint32_t *restrict counts = ranking->counts;
    const uint16_t *restrict bins = ranking->bins;
    const float *restrict chances = ranking->chances;
    Bounds *restrict bounds = ranking->bounds;
    uint32_t last = (uint32_t)(ranking->width - 1), total = 0;
    memset(counts, 0, ranking->bin_count * sizeof *counts);
    for (index_t i = 0; i < ranking->width; i++)
        counts[bins[i]]++;
    for (index_t b = 0; b < ranking->bin_count; b++) {
        bounds[b].low = chances[total < last ? total : last];
        total += counts[b];
        bounds[b].high = chances[(total > 1 ? total : 1) - 1];
    }
}

/* Compare the random numbers of up to 16 values with their bounds.

   Returns a bit for each value, the first the lowest, which is 1 if the value stays; in `undecided` it is 1 if
   the value's rank decides. */
INLINE uint32_t compare_sixteen(
    const Ranking *ranking, const uint32_t *hashes, const Bounds *bounds, index_t count, uint32_t *undecided)
{
#ifdef __AVX512F__
    const __m512i first = _mm512_set1_epi32((int32_t)ranking->first);
    const __m512i second = _mm512_set1_epi32((int32_t)ranking->second);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __mmask16 exist = count < 16 ? (__mmask16)((1u << count) - 1) : (__mmask16)0xFFFF;
    __m512i word = _mm512_mullo_epi32(_mm512_maskz_loadu_epi32(exist, hashes), first);
    word = _mm512_mullo_epi32(_mm512_xor_si512(word, _mm512_srli_epi32(word, 16)), second);
    __m512 number = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(word, 8)), _mm512_set1_ps(0x1p-24f));
    __m512 begin = _mm512_loadu_ps(bounds), end = _mm512_loadu_ps(bounds + 8);
    __m512 low = _mm512_permutex2var_ps(begin, even, end), high = _mm512_permutex2var_ps(begin, odd, end);
    __mmask16 stays = _mm512_mask_cmp_ps_mask(exist, number, low, _CMP_LT_OQ);
    __mmask16 may_stay = _mm512_mask_cmp_ps_mask(exist, number, high, _CMP_LT_OQ);
#else
    uint32_t stays = 0, may_stay = 0;
    for (index_t i = 0; i < count; i++) {
        float number = number_of(hashes[i], ranking->first, ranking->second);
        stays |= (uint32_t)(number < bounds[i].low) << i;
        may_stay |= (uint32_t)(number < bounds[i].high) << i;
    }
#endif
    *undecided = (uint32_t)(may_stay & ~stays);
    return stays;
}

/* Return the rank of value i in its row by magnitude, where equal ones are ranked by their position. */
static int32_t rank_of(const float *restrict row, index_t width, index_t i)
{
    int32_t pattern = pattern_of(row[i]), rank = 0;
    for (index_t j = 0; j < i; j++)
        rank += pattern_of(row[j]) <= pattern;
    for (index_t j = i; j < width; j++)
        rank += pattern_of(row[j]) < pattern;
    return rank;
}

/* Return bits of the undecided values, of 16 from `at` on, that their ranks let stay; zeros stay what they are. */
INLINE uint32_t decide_by_rank(
    const Ranking *ranking, const float *row, const uint32_t *hashes, index_t at, uint32_t undecided)
{
    uint32_t stays = 0;
    for (; undecided; undecided &= undecided - 1) {
        index_t i = at + (index_t)__builtin_ctz(undecided);
        if (!pattern_of(row[i]))
            continue;
        float number = number_of(hashes[i], ranking->first, ranking->second);
        stays |= (uint32_t)(number < ranking->chances[rank_of(row, ranking->width, i)]) << (i - at);
    }
    return stays;
}

/* Write a bit for each of a row's values, which is 1 if the value stays; the first is the lowest of a byte. */
static void draw_row(const Ranking *ranking, const float *row, const uint32_t *hashes, uint8_t *bits)
{
    index_t width = ranking->width;
    if (width >= NARROW) {
        assign_bins(ranking, row, width < WIDE ? FEW_SHIFT : MANY_SHIFT);
        bound_chances(ranking);
    } else {
        /* A narrow row is one bin. */
        ranking->bounds[0] = (Bounds){ranking->chances[0], ranking->chances[width - 1]};
    }
    Bounds bounds[COMPARED];
    for (index_t first = 0; first < width; first += COMPARED) {
        index_t end = least_of(first + COMPARED, width);
        for (index_t i = first; i < end; i++)
            bounds[i - first] = ranking->bounds[ranking->bins[i]];
        for (index_t at = first; at < end; at += 16) {
            index_t count = least_of(16, end - at);
            uint32_t undecided;
            uint32_t stays = compare_sixteen(ranking, hashes + at, bounds + at - first, count, &undecided);
            stays |= decide_by_rank(ranking, row, hashes, at, undecided);
            bits[at / 8] = (uint8_t)stays;
            if (count > 8)
                bits[at / 8 + 1] = (uint8_t)(stays >> 8);
        }
    }
}

/* Draw for the next `count` rows of every model; `values` has their rows, `stride` numbers apart. */
static void draw_rows(
    Ranking *ranking, const float *values, index_t stride, index_t models, index_t first_row, index_t count,
    const Drawn *drawn)
{
    index_t width = ranking->width, row_bytes = (width + 7) / 8;
    hash_positions((uint32_t)(drawn->start + (int64_t)(first_row * width)), count * width, ranking->hashes);
    for (index_t m = 0; m < models; m++) {
        uint8_t *bits = drawn->bits + (m * drawn->rows + first_row) * row_bytes;
        ranking->chances = drawn->chances + m * width;
        ranking->first = drawn->factors[2 * m];
        ranking->second = drawn->factors[2 * m + 1];
        for (index_t r = 0; r < count; r++)
            draw_row(ranking, values + m * stride + r * width, ranking->hashes + r * width, bits + r * row_bytes);
    }
}

/* Decide which changed values stay, by the probability for each rank in rows of `width` and a hash of positions.

   A row of `bits` [models, rows, (width + 7) / 8] has a bit for each value, which is 1 if the value stays.
   `chances` [models, width] are ascending, and `factors` [models, 2] are the multipliers of the models' hashes.
   Counts of magnitudes in bins bound each rank. The exact rank of a value in its row is computed only if the
   value's random number is between the probabilities of both bounds. */
int KERNEL(draw_ranked)(
    const Rows *rows, int64_t width, const float *chances, const uint32_t *factors,
    uint8_t *bits)
{
    Ranking ranking = {.width = (index_t)width, .bin_count = width < WIDE ? FEW_BINS : MANY_BINS};
    index_t size = (index_t)rows->size, wide = ranking.width + (ALIGNED - ranking.width % ALIGNED);
    /* Values are drawn as soon as there are so many, and less than a chunk is left. */
    index_t enough = (HASHED / ranking.width > 1 ? HASHED / ranking.width : 1) * ranking.width;
    index_t stride = (enough / CHUNK + 2) * CHUNK;
    size_t more = ranking.bin_count * 12 + wide * 2 + (rows->models + 1) * stride * 4;
    Memory memory;
    float *values = begin(rows, more, &memory);
    if (!values)
        return NO_MEMORY;
    ranking.hashes = (uint32_t *)(values + rows->models * stride);
    ranking.bounds = (Bounds *)(ranking.hashes + stride);
    ranking.counts = (uint32_t *)(ranking.bounds + ranking.bin_count);
    ranking.bins = (uint16_t *)(ranking.counts + ranking.bin_count);
    memset(ranking.bins, 0, wide * sizeof *ranking.bins);
    Drawn drawn = {rows->start, size / ranking.width, chances, factors, bits};
    index_t held = 0, row = 0;
    for (index_t first = 0; first < size; first += CHUNK) {
        index_t count = least_of(CHUNK, size - first);
        index_t models = load_into(rows, first, count, &memory, values + held, stride);
        held += count;
        if (held < enough && first + count < size)
            continue;
        index_t complete = held / ranking.width, done = complete * ranking.width;
        draw_rows(&ranking, values, stride, models, row, complete, &drawn);
        row += complete;
        held -= done;
        for (index_t m = 0; m < models; m++)
            memmove(values + m * stride, values + m * stride + done, held * sizeof *values);
    }
    free(memory.allocated);
    return 0;
}

/* ── counts near limits ───────────────────────────────────────────────────────────────────────── */

/* Arguments have a row for each limit. `counts` receives the counts of magnitudes above, inside, not zero, and
   collected; `values` and `value_rows` [limits, size] receive the collected patterns and their rows, and `ties`
   [limits, frequent, tensor_rows] the counts of the `frequent` patterns. */
typedef struct {
    int64_t width, limits, frequent_count, tensor_rows;
    const int64_t *model_of_limit, *lows, *highs, *frequent;
    int64_t *counts;
    int32_t *values, *value_rows, *ties;
} NearLimits;

/* A limit's counts in a chunk: magnitudes above it, inside its bracket, and not zero. */
typedef struct {
    int32_t above, nonzero;
    index_t inside;
} ChunkCounts;

/* Count a chunk's magnitudes, and write the indices of those from `low` to `high` into `inside`. */
#ifdef __AVX512F__
INLINE ChunkCounts count_magnitudes(const float *row, index_t count, int32_t low, int32_t high, int32_t *inside)
{
    const __m512i magnitude = _mm512_set1_epi32(MAGNITUDE), lowest = _mm512_set1_epi32(low);
    const __m512i highest = _mm512_set1_epi32(high), step = _mm512_set1_epi32(16), one = _mm512_set1_epi32(1);
    const __m512i span = _mm512_sub_epi32(highest, lowest), none = _mm512_setzero_si512();
    __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i above = none, nonzero = none;
    index_t found = 0;
    for (index_t i = 0; i < count; i += 16) {
        __mmask16 exist = count - i < 16 ? (__mmask16)((1u << (count - i)) - 1) : (__mmask16)0xFFFF;
        __m512i pattern = _mm512_and_si512(_mm512_maskz_load_epi32(exist, row + i), magnitude);
        __mmask16 hits = _mm512_mask_cmple_epu32_mask(exist, _mm512_sub_epi32(pattern, lowest), span);
        above = _mm512_mask_add_epi32(above, _mm512_cmpgt_epi32_mask(pattern, highest), above, one);
        nonzero = _mm512_mask_add_epi32(nonzero, _mm512_test_epi32_mask(pattern, pattern), nonzero, one);
        _mm512_storeu_si512(inside + found, _mm512_maskz_compress_epi32(hits, index));
        found += (index_t)__builtin_popcount(hits);
        index = _mm512_add_epi32(index, step);
    }
    return (ChunkCounts){_mm512_reduce_add_epi32(above), _mm512_reduce_add_epi32(nonzero), found};
}
#else
INLINE ChunkCounts count_magnitudes(
    const float *restrict row, index_t count, int32_t low, int32_t high, int32_t *restrict inside)
{
    ChunkCounts counts = {0, 0, 0};
    for (index_t i = 0; i < count; i++) {
        int32_t pattern = pattern_of(row[i]);
        counts.above += pattern > high;
        counts.nonzero += pattern > 0;
    }
    for (index_t i = 0; i < count; i++) {
        inside[counts.inside] = (int32_t)i;
        counts.inside += (uint32_t)pattern_of(row[i]) - (uint32_t)low <= (uint32_t)high - (uint32_t)low;
    }
    return counts;
}
#endif

/* Return the place of a pattern among the frequent ones, or their number; without a branch, as none is likely. */
INLINE index_t find_frequent(const int64_t *frequent, index_t frequent_count, int64_t pattern)
{
    index_t place = frequent_count;
    for (index_t f = 0; f < frequent_count; f++)
        place = frequent[f] == pattern ? f : place;
    return place;
}

/* Count a chunk's magnitudes near a limit; count those inside its bracket row by row if they are frequent, and
   collect the others. */
static void count_chunk(
    const NearLimits *near, index_t limit, index_t size, const float *row, index_t first, index_t count,
    int32_t *restrict inside)
{
    index_t width = (index_t)near->width, frequent_count = (index_t)near->frequent_count;
    index_t tensor_rows = (index_t)near->tensor_rows;
    const int64_t *frequent = near->frequent + limit * frequent_count;
    int64_t *counts = near->counts + 4 * limit;
    index_t collected = (index_t)counts[3];
    int32_t *restrict values = near->values + limit * size, *restrict value_rows = near->value_rows + limit * size;
    int32_t *restrict ties = near->ties + limit * frequent_count * tensor_rows;
    ChunkCounts found = count_magnitudes(row, count, (int32_t)near->lows[limit], (int32_t)near->highs[limit], inside);
    index_t tensor_row = first / width, row_end = (tensor_row + 1) * width;
    for (index_t n = 0; n < found.inside; n++) {
        index_t i = (index_t)inside[n];
        int32_t pattern = pattern_of(row[i]);
        for (; first + i >= row_end; row_end += width)
            tensor_row++;
        index_t place = find_frequent(frequent, frequent_count, pattern);
        if (place < frequent_count) {
            ties[place * tensor_rows + tensor_row]++;
        } else {
            values[collected] = pattern;
            value_rows[collected++] = (int32_t)tensor_row;
        }
    }
    counts[0] += found.above;
    counts[1] += (int64_t)found.inside;
    counts[2] += found.nonzero;
    counts[3] = (int64_t)collected;
}

/* Count the magnitudes near each limit of a model. */
int KERNEL(count_near_limits)(
    const Rows *rows, int64_t width, int64_t limits, int64_t frequent_count, int64_t tensor_rows,
    const int64_t *model_of_limit, const int64_t *lows, const int64_t *highs, const int64_t *frequent, int64_t *counts,
    int32_t *values, int32_t *value_rows, int32_t *ties)
{
    NearLimits limits_near = {width, limits, frequent_count, tensor_rows, model_of_limit, lows, highs, frequent,
                              counts, values, value_rows, ties};
    const NearLimits *near = &limits_near;
    Memory memory;
    int32_t *inside = begin(rows, (CHUNK + 16) * sizeof(int32_t), &memory);
    if (!inside)
        return NO_MEMORY;
    index_t size = (index_t)rows->size;
    for (index_t first = 0; first < size; first += CHUNK) {
        index_t count = least_of(CHUNK, size - first);
        load(rows, first, count, &memory);
        for (index_t limit = 0; limit < (index_t)near->limits; limit++)
            count_chunk(near, limit, size, row_of(&memory, (index_t)near->model_of_limit[limit]), first, count,
                        inside);
    }
    free(memory.allocated);
    return 0;
}

/* ── conversions ──────────────────────────────────────────────────────────────────────────────── */

/* Return whether stored numbers are neither NaN nor too large. */
int KERNEL(are_usable)(int64_t kind, const void *memory, int64_t count)
{
    return numbers_are_usable(kind, memory, (index_t)count);
}

/* Write the numbers of runs of model m, or last of the base, into `into`. */
static void take_runs_of(const Rows *rows, index_t m, int64_t runs, const int64_t *begins, const int64_t *ends, float *into)
{
    int64_t kind = rows->places[m].kind, handle = rows->places[m].handle;
    for (index_t run = 0; run < (index_t)runs; run++) {
        index_t first = (index_t)begins[run], count = (index_t)ends[run] - first;
        char *stored = begin_of(rows, m);
        if (handle >= 0) {
            int64_t position = rows->places[m].position + (int64_t)first * (kind == FLOAT32 ? 4 : 2);
            if (fill(stored, kind, count, handle, position, 0) == UNREADABLE) {
                rows->states[rows->places[m].number] = UNREADABLE;
                return;
            }
        } else {
            stored = address(stored, kind, first);
        }
        decode_numbers(kind, stored, count, into);
        into += count;
    }
}

/* Write the numbers from each of `begins` to its end into `out` [models + 1, stride], the base's last.

   Of rows in files nothing else is read, and what is read is not checked. */
int KERNEL(take_runs)(
    const Rows *rows, int64_t runs, const int64_t *begins, const int64_t *ends, int64_t stride, float *out)
{
    for (index_t m = 0; m < (index_t)rows->models + (rows->base_use != WITHOUT_BASE); m++)
        take_runs_of(rows, m, runs, begins, ends, out + m * (index_t)stride);
    return 0;
}

/* Fill the memory with the bytes of an open file from a position on; return whether there are as many. */
int KERNEL(read_file)(void *memory, int64_t size, int64_t handle, int64_t position)
{
    return read_bytes(memory, (size_t)size, (int)handle, position);
}

#endif
