"""S3: the owner that a request expects, conditional writes, and versions."""

from __future__ import annotations

import json
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

import support

server: support.Server


def setUpModule() -> None:
    global server
    server = support.Server()


def tearDownModule() -> None:
    server.remove()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.s3 = server.client("s3")
        self.bucket = self.id().rsplit(".", 1)[-1].replace("_", "-")[:60]
        self.s3.create_bucket(Bucket=self.bucket)

    def status(self, call: Any, **options: Any) -> tuple[int, str]:
        try:
            answer = call(Bucket=self.bucket, **options)
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
        return answer["ResponseMetadata"]["HTTPStatusCode"], ""

    def test_expected_owner(self) -> None:
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")
        calls = [(self.s3.get_object, {"Key": "k"}), (self.s3.head_object, {"Key": "k"}),
                 (self.s3.put_object, {"Key": "k", "Body": b""}), (self.s3.delete_object, {"Key": "k"}),
                 (self.s3.list_objects_v2, {}), (self.s3.head_bucket, {}), (self.s3.list_object_versions, {})]
        for call, options in calls:
            with self.subTest(call.__name__):
                code, _ = self.status(call, ExpectedBucketOwner="999999999999", **options)
                self.assertEqual(code, 403)
        self.assertEqual(self.status(self.s3.get_object, Key="k", ExpectedBucketOwner=support.ACCOUNT)[0], 200)
        self.assertEqual(self.status(self.s3.get_object, Key="k", ExpectedBucketOwner="999999999999"),
                         (403, "AccessDenied"))

    def test_expected_owner_of_a_copy_source(self) -> None:
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")
        options = {"Key": "copy", "CopySource": {"Bucket": self.bucket, "Key": "k"}}
        self.assertEqual(self.status(self.s3.copy_object, ExpectedSourceBucketOwner="999999999999", **options),
                         (403, "AccessDenied"))
        self.assertEqual(self.status(self.s3.copy_object, ExpectedSourceBucketOwner=support.ACCOUNT, **options)[0],
                         200)

    def test_missing_object_and_the_right_to_list(self) -> None:
        iam = server.client("iam")
        iam.create_user(UserName="reader")
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        reader = server.client("s3", aws_access_key_id=key["AccessKeyId"],
                               aws_secret_access_key=key["SecretAccessKey"])
        get = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{self.bucket}/*"}
        see = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{self.bucket}"}
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")
        for statements, expected in (([get], (403, "AccessDenied")), ([get, see], (404, "NoSuchKey"))):
            iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=json.dumps(
                {"Version": "2012-10-17", "Statement": statements}))
            self.assertEqual(self.status(reader.get_object, Key="none"), expected)
            self.assertEqual(self.status(reader.head_object, Key="none")[0], expected[0])
            self.assertEqual(self.status(reader.get_object, Key="k")[0], 200)
        self.assertEqual(self.status(self.s3.get_object, Key="none"), (404, "NoSuchKey"))

    def test_a_policy_may_ask_whose_bucket_it_is(self) -> None:
        iam = server.client("iam")
        iam.create_user(UserName="owner")
        key = iam.create_access_key(UserName="owner")["AccessKey"]
        reader = server.client("s3", aws_access_key_id=key["AccessKeyId"],
                               aws_secret_access_key=key["SecretAccessKey"])
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")
        for account, expected in ((support.ACCOUNT, 200), ("999999999999", 403)):
            for name in ("s3:ResourceAccount", "aws:ResourceAccount"):
                statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::*/*",
                             "Condition": {"StringEquals": {name: account}}}
                iam.put_user_policy(UserName="owner", PolicyName="p", PolicyDocument=json.dumps(
                    {"Version": "2012-10-17", "Statement": [statement]}))
                self.assertEqual(self.status(reader.get_object, Key="k")[0], expected, (name, account))

    def test_loopback_counts_as_secure_transport(self) -> None:
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")
        self.s3.put_bucket_policy(Bucket=self.bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [{
            "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{self.bucket}/*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}}}]}))
        iam = server.client("iam")
        iam.create_user(UserName="plain")
        key = iam.create_access_key(UserName="plain")["AccessKey"]
        reader = server.client("s3", aws_access_key_id=key["AccessKeyId"],
                               aws_secret_access_key=key["SecretAccessKey"])
        iam.put_user_policy(UserName="plain", PolicyName="p", PolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}))
        self.assertEqual(self.status(reader.get_object, Key="k")[0], 200)

    def test_pages_are_no_longer_than_a_thousand(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: self.s3.put_object(Bucket=self.bucket, Key=f"{n:04}", Body=b""), range(1005)))
        page = self.s3.list_objects_v2(Bucket=self.bucket, MaxKeys=5000)
        self.assertEqual((len(page["Contents"]), page["IsTruncated"]), (1000, True))
        rest = self.s3.list_objects_v2(Bucket=self.bucket, ContinuationToken=page["NextContinuationToken"])
        self.assertEqual(len(rest["Contents"]), 5)

    def test_conditional_put(self) -> None:
        put = self.s3.put_object
        self.assertEqual(self.status(put, Key="k", Body=b"1", IfNoneMatch="*")[0], 200)
        self.assertEqual(self.status(put, Key="k", Body=b"2", IfNoneMatch="*"), (412, "PreconditionFailed"))
        tag = self.s3.head_object(Bucket=self.bucket, Key="k")["ETag"]
        self.assertEqual(self.status(put, Key="k", Body=b"3", IfMatch=tag)[0], 200)
        self.assertEqual(self.status(put, Key="k", Body=b"4", IfMatch=tag), (412, "PreconditionFailed"))
        self.assertEqual(self.status(put, Key="none", Body=b"5", IfMatch=tag), (404, "NoSuchKey"))

    def test_conditional_delete(self) -> None:
        tag = self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")["ETag"]
        other = '"00000000000000000000000000000000"'
        self.assertEqual(self.status(self.s3.delete_object, Key="k", IfMatch=other), (412, "PreconditionFailed"))
        self.assertEqual(self.status(self.s3.delete_object, Key="k", IfMatch=tag)[0], 204)
        self.assertEqual(self.status(self.s3.delete_object, Key="k", IfMatch=tag), (404, "NoSuchKey"))

    def test_conditional_copy_and_multipart(self) -> None:
        self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")
        source = {"Bucket": self.bucket, "Key": "k"}
        self.assertEqual(self.status(self.s3.copy_object, Key="k", CopySource=source, IfNoneMatch="*"),
                         (412, "PreconditionFailed"))
        self.assertEqual(self.status(self.s3.copy_object, Key="c", CopySource=source, IfNoneMatch="*")[0], 200)
        upload = self.s3.create_multipart_upload(Bucket=self.bucket, Key="k")["UploadId"]
        part = self.s3.upload_part(Bucket=self.bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"2")["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
        self.assertEqual(self.status(self.s3.complete_multipart_upload, Key="k", UploadId=upload,
                                     MultipartUpload=parts, IfNoneMatch="*"), (412, "PreconditionFailed"))

    def test_one_of_many_creates_wins(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            codes = list(pool.map(lambda n: self.status(self.s3.put_object, Key="k", Body=b"%d" % n,
                                                        IfNoneMatch="*")[0], range(16)))
        self.assertEqual(sorted(codes), [200] + [412] * 15)

    def test_versions(self) -> None:
        self.s3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        first = self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"1")["VersionId"]
        second = self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"2")["VersionId"]
        marker = self.s3.delete_object(Bucket=self.bucket, Key="k")["VersionId"]
        # A delete marker counts as absent for a conditional create.
        third = self.s3.put_object(Bucket=self.bucket, Key="k", Body=b"3", IfNoneMatch="*")["VersionId"]
        listed = self.s3.list_object_versions(Bucket=self.bucket)
        self.assertEqual([one["VersionId"] for one in listed["Versions"]], [third, second, first])
        self.assertEqual([one["VersionId"] for one in listed["DeleteMarkers"]], [marker])
        self.assertTrue(listed["Versions"][0]["IsLatest"])
        for version in (third, marker, first, second):
            self.s3.delete_object(Bucket=self.bucket, Key="k", VersionId=version)
        left = self.s3.list_object_versions(Bucket=self.bucket)
        self.assertNotIn("Versions", left)
        self.assertNotIn("DeleteMarkers", left)
        self.s3.delete_bucket(Bucket=self.bucket)
