"""Beside the handler, to show that a folder is published whole."""


def title(name):
    return name.title()
