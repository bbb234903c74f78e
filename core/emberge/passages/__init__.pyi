"""Public names of passages, each with the module that defines it."""

from .cutting import PassageSize as PassageSize
from .cutting import TextPassage as TextPassage
from .cutting import count_words as count_words
from .cutting import cut_document as cut_document
from .cutting import split_sentences as split_sentences
from .document_files import DocumentReading as DocumentReading
from .document_files import read_documents as read_documents
from .source_document import SourceDocument as SourceDocument
from .source_document import SourceLink as SourceLink
from .source_document import SourceSection as SourceSection
