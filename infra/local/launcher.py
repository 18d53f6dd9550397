"""Start the local AWS: ministack with this project's corrections, on 127.0.0.1 only.

    GATEWAY_PORT=4566 TMPDIR=… STATE_DIR=… S3_DATA_DIR=… python infra/local/launcher.py

``/_ministack/health`` answers when it is ready; SIGTERM stops it.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys

#: Set unless the environment says otherwise. ministack reads them when it is imported.
DEFAULTS = {
    "AUTH": "true",
    "MINISTACK_ACCOUNT_ID": "123456789012",
    "MINISTACK_REGION": "us-east-1",
    "SFTP_ENABLED": "0",
    "IOT_MTLS_ENABLED": "0",
    "LAMBDA_EXECUTOR": "local",
}


def main() -> None:
    from localaws import REQUIRED_MINISTACK, install

    found = importlib.metadata.version("ministack")
    if found != REQUIRED_MINISTACK:
        sys.exit(f"The local AWS corrects ministack {REQUIRED_MINISTACK} and does not start on {found}.")
    if os.environ.setdefault("BIND_HOST", "127.0.0.1") != "127.0.0.1":
        sys.exit("The local AWS listens on 127.0.0.1 only.")
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    port = os.environ.setdefault("GATEWAY_PORT", "4566")
    os.environ.setdefault("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    install()

    from ministack import app

    sys.argv[1:] = []
    app.main()


if __name__ == "__main__":
    main()
