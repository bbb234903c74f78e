"""Recipe files parsed: steps, foreach, overrides, and other tools' recipes translated."""
