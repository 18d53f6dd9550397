"""Greets: with a word of the layer, a phrase of the producer, and the address of its data."""

import os

import words
from politeness import title


def handler(event, context):
    mark = os.environ.get("PUNCTUATION", "")
    return {
        "says": f"{os.environ['GREETING']}, {title(event.get('name', words.NOBODY))}{mark}",
        "layer": words.VERSION,
        "data": os.environ["DATA_URL"],
    }
