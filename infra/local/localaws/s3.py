"""S3: what it refuses, and how much it lists.

A request that names another owner than the bucket's is refused. Copies may be
conditional. A missing object is AccessDenied to whom may not list the bucket.
No page has more than 1,000 entries. Policies may ask whose bucket it is
(`s3:ResourceAccount`, `aws:ResourceAccount`), and take loopback for a secure
transport.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

PAGE_LIMIT = 1000
_DENIED = (b'<?xml version="1.0" encoding="UTF-8"?>\n'
           b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")


def _bucket_of(source: str) -> str:
    return unquote(source).lstrip("/").split("/", 1)[0]


def _denied(method: str) -> tuple[int, dict[str, str], bytes]:
    return 403, {"Content-Type": "application/xml"}, b"" if method == "HEAD" else _DENIED


def _other_owner(path: str, headers: dict[str, str]) -> bool:
    """Whether a request expects another owner than a bucket has."""
    from ministack.services import s3

    for header, bucket in (("x-amz-expected-bucket-owner", _bucket_of(path)),
                           ("x-amz-source-expected-bucket-owner", _bucket_of(headers.get("x-amz-copy-source", "")))):
        expected = headers.get(header)
        owner = s3._bucket_owner_account(bucket) if expected else None
        if owner is not None and owner != expected:
            return True
    return False


def _may_not_list(path: str, headers: dict[str, str], query_params: dict[str, Any]) -> bool:
    """Whether the caller lacks the right to list a bucket, and so to know what is not in it."""
    from ministack import app
    from ministack.core.iam_evaluator import enforce
    from ministack.core.responses import get_region
    from ministack.core.router import extract_access_key_id

    access_key = extract_access_key_id(headers, query_params)
    return bool(app.AUTH and access_key and enforce(
        access_key, "s3:ListBucket", "s3", get_region(), resource_arn=f"arn:aws:s3:::{_bucket_of(path)}"))


def _capped(query_params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with page sizes that S3 grants."""
    capped = dict(query_params)
    for name in ("max-keys", "max-uploads", "max-parts"):
        value = capped.get(name)
        text = value[0] if isinstance(value, list) and value else value
        if isinstance(text, str) and text.isdigit() and int(text) > PAGE_LIMIT:
            capped[name] = [str(PAGE_LIMIT)]
    return capped


def _resource_account(key: str, context: Any) -> str | None:
    """The account that owns the bucket of a request, if that is what a policy asks for."""
    from ministack.services import s3

    if key.lower() not in ("s3:resourceaccount", "aws:resourceaccount"):
        return None
    service, _, resource = context.resource_arn.partition(":::")
    return s3._bucket_owner_account(_bucket_of(resource)) if service.endswith(":s3") else None


def install() -> None:
    from ministack.core import iam_evaluator
    from ministack.services import s3

    resolve = iam_evaluator._resolve_condition_key

    def resolve_condition_key(key: str, context: Any) -> Any:
        # There is no TLS on loopback: a policy that refuses plain HTTP would refuse everything.
        if key.lower() == "aws:securetransport":
            return "true"
        return _resource_account(key, context) or resolve(key, context)

    iam_evaluator._resolve_condition_key = resolve_condition_key

    original, copy = s3.handle_request, s3._copy_object

    async def handle_request(method: str, path: str, headers: dict[str, str], body: bytes,
                             query_params: dict[str, Any], *rest: Any, **options: Any) -> Any:
        if _other_owner(path, headers):
            return _denied(method)
        answer = await original(method, path, headers, body, _capped(query_params), *rest, **options)
        has_key = "/" in path.strip("/")
        if answer[0] == 404 and method in ("GET", "HEAD") and has_key and _may_not_list(path, headers, query_params):
            return _denied(method)
        return answer

    def copy_object(bucket: str, key: str, headers: dict[str, str]) -> Any:
        target = s3._buckets.get(bucket)
        failed = s3._check_put_preconditions(headers, target["objects"].get(key)) if target else None
        return failed or copy(bucket, key, headers)

    s3.handle_request, s3._copy_object = handle_request, copy_object
