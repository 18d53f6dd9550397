"""The function of the nested stack."""


def handler(event, context):
    return {"echo": event}
