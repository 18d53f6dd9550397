"""The schemas and RFC 6902, without a server."""

from __future__ import annotations

import unittest

import support  # noqa: F401  puts the package on the path
from localaws import jsonpatch, schemas


class Schemas(unittest.TestCase):
    def schema(self, name: str) -> schemas.Schema:
        found = schemas.load(name)
        assert found is not None
        return found

    def test_every_schema_is_found_and_loads(self) -> None:
        self.assertGreater(len(schemas._index()), 1800)
        self.assertIsNone(schemas.load("AWS::No::Such"))
        self.assertEqual(self.schema("AWS::IAM::RolePolicy").primary, [("PolicyName",), ("RoleName",)])

    def test_what_is_provisionable(self) -> None:
        self.assertTrue(self.schema("AWS::S3::Bucket").supports("UPDATE"))
        self.assertFalse(self.schema("AWS::Lambda::Permission").supports("UPDATE"))
        for name in ("AWS::IAM::Policy", "AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy",
                     "AWS::CloudFormation::WaitCondition"):
            self.assertFalse(self.schema(name).provisionable, name)

    def test_pointers(self) -> None:
        model = {"A": [{"B": 1, "C": 2}, {"B": 3}], "D": {"E": 4}}
        self.assertEqual(schemas.pointer("/properties/A/*/B"), ("A", "*", "B"))
        self.assertEqual(list(schemas.values_at(model, ("A", "*", "B"))), [1, 3])
        self.assertEqual(list(schemas.values_at(model, ("A", "B"))), [1, 3])
        self.assertEqual(schemas.without(model, [("A", "*", "B"), ("D", "E"), ("X", "Y")]),
                         {"A": [{"C": 2}, {}], "D": {}})

    def test_compound_identifier(self) -> None:
        schema = self.schema("AWS::IAM::RolePolicy")
        self.assertEqual(schema.identifier({"RoleName": "r", "PolicyName": "p"}), "p|r")
        self.assertIsNone(schema.identifier({"RoleName": "r"}))
        self.assertEqual(schema.identifier_parts("p|r"), {"PolicyName": "p", "RoleName": "r"})

    def test_validation(self) -> None:
        schema = self.schema("AWS::DynamoDB::Table")
        key = {"AttributeName": "a", "KeyType": "HASH"}
        self.assertEqual(schema.validate({"KeySchema": [key]}), [])
        self.assertEqual(schema.validate({}), ["#: required key [KeySchema] not found"])
        self.assertEqual(schema.validate({"KeySchema": [{**key, "X": 1}]}),
                         ["#/KeySchema/0: extraneous key [X] is not permitted"])
        self.assertEqual(schema.validate([]), ["#: expected type: JSONObject, found: JSONArray"])
        self.assertEqual(schema.validate({"KeySchema": [key], "BillingMode": "x", "TableName": 1}),
                         ["#/BillingMode: #: x is not a valid enum value",
                          "#/TableName: expected type: String, found: Integer"])


class Patches(unittest.TestCase):
    def test_operations(self) -> None:
        document = {"a": [1, 2], "b": {"c/d": 1, "e~f": 2}}
        for operations, expected in (
                ([{"op": "add", "path": "/a/1", "value": 9}], {**document, "a": [1, 9, 2]}),
                ([{"op": "add", "path": "/a/-", "value": 9}], {**document, "a": [1, 2, 9]}),
                ([{"op": "replace", "path": "/b/c~1d", "value": 9}], {**document, "b": {"c/d": 9, "e~f": 2}}),
                ([{"op": "remove", "path": "/b/e~0f"}], {**document, "b": {"c/d": 1}}),
                ([{"op": "move", "from": "/a/0", "path": "/x"}], {**document, "a": [2], "x": 1}),
                ([{"op": "copy", "from": "/a", "path": "/x"}], {**document, "x": [1, 2]}),
                ([{"op": "test", "path": "/a/0", "value": 1}], document),
                ([{"op": "replace", "path": "", "value": {}}], {})):
            with self.subTest(operations):
                self.assertEqual(jsonpatch.apply(document, operations), expected)
        self.assertEqual(document, {"a": [1, 2], "b": {"c/d": 1, "e~f": 2}})

    def test_what_does_not_fit(self) -> None:
        for operation in ({"op": "replace", "path": "/x", "value": 1}, {"op": "remove", "path": "/x"},
                          {"op": "add", "path": "/x/y", "value": 1}, {"op": "remove", "path": "/a/2"},
                          {"op": "replace", "path": "/a/-", "value": 1}, {"op": "remove", "path": "/a/01"},
                          {"op": "add", "path": "/a/4", "value": 1}, {"op": "test", "path": "/a", "value": 1},
                          {"op": "add", "path": "x", "value": 1}, {"op": "add", "path": "/x"},
                          {"op": "remove", "path": ""}, {"op": "move", "path": "/x"}, {"path": "/x"}, "x"):
            with self.subTest(operation), self.assertRaises(jsonpatch.PatchError):
                jsonpatch.apply({"a": [1, 2]}, [operation])
        with self.assertRaises(jsonpatch.PatchError):
            jsonpatch.apply({}, {})
