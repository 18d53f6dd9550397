use hyper::Request;

use super::*;

/// Method, target, headers and body to what is read from them.
#[track_caller]
fn check(head: &str, body: &str, expected: &str) {
    let mut lines = head.lines().map(str::trim);
    let (method, target) = lines.next().and_then(|line| line.split_once(' ')).unwrap_or_default();
    let mut request = Request::builder().method(method).uri(target);
    for line in lines {
        if let Some((name, value)) = line.split_once(": ") {
            request = request.header(name, value);
        }
    }
    let head = request.body(()).map(|request| request.into_parts().0);
    let Ok(head) = head else { panic!("no request: {method} {target}") };
    let mut call = Call::from_head(&head);
    if call.wants_body() {
        call.read_body(body.as_bytes());
    }
    let found = format!("{} {} {} {:?}", call.service, call.operation, call.resource, call.protocol);
    assert_eq!(found, expected);
}

fn signed(service: &str) -> String {
    format!(
        "authorization: AWS4-HMAC-SHA256 Credential=AKID/20260101/us-east-1/{service}/aws4_request, \
         SignedHeaders=host, Signature=0"
    )
}

#[test]
fn s3_operations() {
    for (request, operation, resource) in [
        ("GET /", "ListBuckets", ""),
        ("PUT /b", "CreateBucket", "b"),
        ("PUT /b/", "CreateBucket", "b"),
        ("HEAD /b", "HeadBucket", "b"),
        ("DELETE /b", "DeleteBucket", "b"),
        ("GET /b?location", "GetBucketLocation", "b"),
        ("GET /b/?location=", "GetBucketLocation", "b"),
        ("GET /b?list-type=2&prefix=a%2Fb&x-id=ListObjectsV2", "ListObjectsV2", "b/a/b"),
        ("GET /b?prefix=a", "ListObjects", "b/a"),
        ("GET /b?versions&prefix=a", "ListObjectVersions", "b/a"),
        ("GET /b?uploads", "ListMultipartUploads", "b"),
        ("POST /b?delete", "DeleteObjects", "b"),
        ("PUT /b?versioning", "PutBucketVersioning", "b"),
        ("GET /b?versioning", "GetBucketVersioning", "b"),
        ("PUT /b?encryption", "PutBucketEncryption", "b"),
        ("PUT /b?publicAccessBlock", "PutPublicAccessBlock", "b"),
        ("GET /b?policy", "GetBucketPolicy", "b"),
        ("GET /b?policyStatus", "GetBucketPolicyStatus", "b"),
        ("DELETE /b?policy", "DeleteBucketPolicy", "b"),
        ("PUT /b?lifecycle", "PutBucketLifecycleConfiguration", "b"),
        ("DELETE /b?lifecycle", "DeleteBucketLifecycle", "b"),
        ("GET /b/k", "GetObject", "b/k"),
        ("GET /b/a/b%20c%2B+d.json?versionId=1&x-id=GetObject", "GetObject", "b/a/b c++d.json"),
        ("HEAD /b/k", "HeadObject", "b/k"),
        ("PUT /b/k?x-id=PutObject", "PutObject", "b/k"),
        ("DELETE /b/k", "DeleteObject", "b/k"),
        ("PUT /b/k?tagging", "PutObjectTagging", "b/k"),
        ("GET /b/k?attributes", "GetObjectAttributes", "b/k"),
        ("POST /b/k?uploads", "CreateMultipartUpload", "b/k"),
        ("PUT /b/k?partNumber=1&uploadId=u", "UploadPart", "b/k"),
        ("PUT /b/k?partNumber=1&uploadId=u\nx-amz-copy-source: b/j", "UploadPartCopy", "b/k"),
        ("POST /b/k?uploadId=u", "CompleteMultipartUpload", "b/k"),
        ("DELETE /b/k?uploadId=u", "AbortMultipartUpload", "b/k"),
        ("GET /b/k?uploadId=u", "ListParts", "b/k"),
        ("PUT /b/k\nx-amz-copy-source: b/j", "CopyObject", "b/k"),
    ] {
        let head = format!("{request}\nhost: 127.0.0.1:4566\n{}", signed("s3"));
        check(&head, "", &format!("s3 {operation} {resource} S3"));
    }
}

#[test]
fn s3_addressed_and_signed_otherwise() {
    check(
        &format!("PUT /a/k\nhost: b.s3.us-east-1.amazonaws.com\n{}", signed("s3")),
        "",
        "s3 PutObject b/a/k S3",
    );
    check("GET /k\nhost: my.b.s3.amazonaws.com", "", "s3 GetObject my.b/k S3");
    let presigned = "PUT /b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256\
                     &X-Amz-Credential=AKID%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=0";
    check(presigned, "", "s3 PutObject b/k S3");
    check("GET /b/k?AWSAccessKeyId=AKID&Signature=0&Expires=1", "", "s3 GetObject b/k S3");
    let v4a = "GET /b/k\nauthorization: AWS4-ECDSA-P256-SHA256 Credential=AKID/20260101/s3/aws4_request, \
               SignedHeaders=host, Signature=0";
    check(v4a, "", "s3 GetObject b/k S3");
}

#[test]
fn json_protocols() {
    let json = |service: &str, target: &str| {
        format!(
            "POST /\ncontent-type: application/x-amz-json-1.0\nx-amz-target: {target}\n{}",
            signed(service)
        )
    };
    let plain = "Json { query_mode: false }";
    for (service, target, body, expected) in [
        (
            "cloudcontrolapi",
            "CloudApiService.UpdateResource",
            r#"{"TypeName": "AWS::SQS::Queue", "Identifier": "q", "RoleArn": "r", "PatchDocument": "[]"}"#,
            "cloudcontrol UpdateResource AWS::SQS::Queue q",
        ),
        (
            "cloudcontrolapi",
            "CloudApiService.CreateResource",
            r#"{"TypeName": "AWS::SQS::Queue", "DesiredState": "{\"TypeName\": \"cut o"#,
            "cloudcontrol CreateResource AWS::SQS::Queue",
        ),
        (
            "cloudcontrolapi",
            "CloudApiService.GetResourceRequestStatus",
            r#"{"RequestToken": "t"}"#,
            "cloudcontrol GetResourceRequestStatus t",
        ),
        (
            "states",
            "AWSStepFunctions.StartExecution",
            r#"{"stateMachineArn": "arn:m", "name": "n", "input": "{}"}"#,
            "stepfunctions StartExecution arn:m",
        ),
        (
            "secretsmanager",
            "secretsmanager.GetSecretValue",
            r#"{"Nested": {"Name": [1]}, "SecretId": "s"}"#,
            "secretsmanager GetSecretValue s",
        ),
        ("ssm", "AmazonSSM.GetParameters", r#"{"Names": ["/a"]}"#, "ssm GetParameters "),
        ("ssm", "AmazonSSM.GetParameter", "no JSON", "ssm GetParameter "),
        (
            "ecr",
            "AmazonEC2ContainerRegistry_V20150921.PutImage",
            r#"{"repositoryName": "r"}"#,
            "ecr PutImage r",
        ),
    ] {
        check(&json(service, target), body, &format!("{expected} {plain}"));
    }
    check(
        &(json("sqs", "AmazonSQS.SendMessage") + "\nx-amzn-query-mode: true"),
        r#"{"QueueUrl": "http://q", "MessageBody": "m"}"#,
        "sqs SendMessage http://q Json { query_mode: true }",
    );
    check(
        "POST /\nx-amz-target: CloudApiService.GetResource",
        r#"{"TypeName": "T", "Identifier": "i"}"#,
        "cloudcontrol GetResource T i Json { query_mode: false }",
    );
}

#[test]
fn query_protocols() {
    let form = |service: &str| {
        format!("POST /\ncontent-type: application/x-www-form-urlencoded; charset=utf-8\n{}", signed(service))
    };
    check(
        &form("sts"),
        "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr",
        "sts AssumeRole arn:aws:iam::1:role/r Query",
    );
    check(
        &form("cloudformation"),
        "Version=1&Action=DescribeStacks&StackName=My+Stack",
        "cloudformation DescribeStacks My Stack Query",
    );
    check(&form("ec2"), "Action=DescribeVpcs", "ec2 DescribeVpcs  Ec2");
    let presigned = "GET /?Action=GetCallerIdentity&X-Amz-Credential=A%2F1%2Fus-east-1%2Fsts%2Faws4_request";
    check(presigned, "", "sts GetCallerIdentity  Query");
}

#[test]
fn rest_and_rpc() {
    let on = |request: &str, service: &str| format!("{request}\n{}", signed(service));
    for (request, service, expected) in [
        ("POST /2015-03-31/functions/f/invocations", "lambda", "lambda Invoke f RestJson"),
        (
            "POST /2015-03-31/functions/arn%3Aaws%3Alambda%3Ax/invocations?Qualifier=1",
            "lambda",
            "lambda Invoke arn:aws:lambda:x RestJson",
        ),
        ("GET /2015-03-31/functions/", "lambda", "lambda ListFunctions  RestJson"),
        ("PUT /2017-10-31/functions/f/concurrency", "lambda", "lambda PutFunctionConcurrency f RestJson"),
        ("GET /2017-03-31/tags/arn%3Aa%2Fb/c", "lambda", "lambda ListTags arn:a/b/c RestJson"),
        ("POST /schedules/s", "scheduler", "scheduler CreateSchedule s RestJson"),
        ("POST /2013-04-01/hostedzone/Z/rrset/", "route53", "route53 ChangeResourceRecordSets Z Query"),
        ("GET /restapis/a/b", "apigateway", "apigateway GET /restapis /restapis/a/b RestJson"),
        (
            "POST /service/GraniteServiceVersion20100801/operation/PutMetricData",
            "monitoring",
            "cloudwatch PutMetricData  RpcCbor",
        ),
    ] {
        check(&on(request, service), "", expected);
    }
    check("POST /service/Logs_20140328/operation/PutLogEvents", "", "logs PutLogEvents  RpcCbor");
    check("GET /somewhere", "", "unsigned GET /somewhere /somewhere RestJson");
}

#[test]
fn image_registry() {
    for (request, expected) in [
        ("GET /v2/", "Ping "),
        ("HEAD /v2/a/b/manifests/latest", "HeadManifest a/b/manifests/latest"),
        ("PUT /v2/r/manifests/1", "PutManifest r/manifests/1"),
        ("HEAD /v2/r/blobs/sha256:1", "HeadBlob r/blobs/sha256:1"),
        ("POST /v2/r/blobs/uploads/", "StartUpload r/blobs/uploads"),
        ("POST /v2/r/blobs/uploads/?mount=sha256:1&from=s", "MountBlob r/blobs/uploads"),
        ("PATCH /v2/r/blobs/uploads/u", "UploadChunk r/blobs/uploads/u"),
        ("GET /v2/r/tags/list", "ListTags r/tags/list"),
    ] {
        check(&format!("{request}\nauthorization: Basic eA=="), "", &format!("registry {expected} Registry"));
    }
}
