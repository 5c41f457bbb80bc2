"""From text to batches: documents, their tokens in a memory-mapped cache, packed rows in a reproducible order."""

from rebracket.data.batches import Batch, Batches, ordered
from rebracket.data.corpus import Corpus, load_corpus
from rebracket.data.sources import read_file
from rebracket.data.text import Document, hold_out, read
from rebracket.data.tokens import TokenStream, cache_folder, token_stream

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "Document",
    "TokenStream",
    "cache_folder",
    "hold_out",
    "load_corpus",
    "ordered",
    "read",
    "read_file",
    "token_stream",
]
