"""ECR: rights are those on the repository that is named."""

from __future__ import annotations

import json
import unittest

from botocore.exceptions import ClientError

import support

server: support.Server


def setUpModule() -> None:
    global server
    server = support.Server()


def tearDownModule() -> None:
    server.remove()


class Rights(unittest.TestCase):
    def test_describing_one_repository_needs_the_right_to_that_one(self) -> None:
        ecr, iam = server.client("ecr"), server.client("iam")
        for name in ("mine", "other"):
            ecr.create_repository(repositoryName=name, imageTagMutability="IMMUTABLE")
        iam.create_user(UserName="reader")
        iam.put_user_policy(UserName="reader", PolicyName="p", PolicyDocument=json.dumps({
            "Version": "2012-10-17", "Statement": [{
                "Effect": "Allow", "Action": "ecr:DescribeRepositories",
                "Resource": f"arn:aws:ecr:*:{support.ACCOUNT}:repository/mine"}]}))
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        reader = server.client("ecr", account=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"])
        found = reader.describe_repositories(repositoryNames=["mine"])["repositories"][0]
        self.assertEqual(found["imageTagMutability"], "IMMUTABLE")
        for names in (["other"], ["mine", "other"]):
            with self.subTest(names), self.assertRaises(ClientError) as refused:
                reader.describe_repositories(repositoryNames=names)
            self.assertEqual(refused.exception.response["Error"]["Code"], "AccessDeniedException")
