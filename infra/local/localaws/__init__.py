"""The local AWS: ministack, corrected in process where it would let faults pass in vain.

Each module closes one gap and has an ``install()`` that puts its corrections
in place. Nothing of ministack is copied or rewritten on disk.
"""

REQUIRED_MINISTACK = "1.5.33"


def install() -> None:
    """Apply every correction. Call once, after the environment is set and before the server starts."""
    from . import admin, cloudcontrol, describe_type, ecr, functions, provisioners, s3, stepfunctions

    provisioners.install()
    functions.install()
    s3.install()
    ecr.install()
    stepfunctions.install()
    cloudcontrol.install()
    describe_type.install()
    admin.install()
