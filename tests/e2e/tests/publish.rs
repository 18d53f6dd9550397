//! `cdkd-publish-assets` on its own: what it publishes is compared byte for byte with what another reader finds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cdkd_e2e::{World, world_of};
use cdkd_test_support::{ACCOUNT, Error, Options, REGION, Xml, workspace};
use cdkd_wire::Rule;
use http::Method;
use serde_json::{Value, json};

/// Seconds of an invocation: short, so that one runs out of them.
const TIME_LIMIT: u32 = 15;
/// The region that is not the run's.
const FAR: &str = "eu-west-1";
const STRANGER: &str = "999999999999";

fn world() -> Arc<World> {
    world_of(Options::default().time_limit(TIME_LIMIT))
}

/// A file of an assembly.
#[derive(Clone)]
struct Packed {
    path: String,
    mode: u32,
    content: Vec<u8>,
    stored: bool,
}

fn file(path: &str, content: impl Into<Vec<u8>>) -> Packed {
    Packed { path: path.to_owned(), mode: 0o100_644, content: content.into(), stored: false }
}

fn tool(path: &str, content: &str) -> Packed {
    Packed { mode: 0o100_755, ..file(path, content) }
}

fn link(path: &str, target: &str) -> Packed {
    Packed { mode: 0o120_777, stored: true, ..file(path, target) }
}

/// Bytes that no compression makes shorter.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()
    };
    (0..len.div_ceil(4)).flat_map(|_| next()[..4].to_vec()).take(len).collect()
}

/// Runs a program of Python with files of these contents as its arguments, and returns what it prints.
fn python(program: &str, inputs: &[&[u8]]) -> Vec<u8> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = workspace::target().join("tmp").join(format!(
        "publish-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let paths = inputs.iter().enumerate().map(|(n, content)| {
        let path = folder.join(n.to_string());
        std::fs::write(&path, content).unwrap();
        path
    });
    let paths: Vec<_> = paths.collect();
    let mut child = Command::new(workspace::python().unwrap())
        .args(["-c", program])
        .args(&paths)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = Vec::new();
    std::io::copy(child.stdout.as_mut().unwrap(), &mut output).unwrap();
    assert!(child.wait().unwrap().success());
    std::fs::remove_dir_all(&folder).unwrap();
    output
}

/// A zip as Python writes it, in the order given.
fn zip(files: &[Packed]) -> Vec<u8> {
    let mut listing = Vec::new();
    let mut contents = Vec::new();
    for file in files {
        listing.push(json!([file.path, file.mode, file.stored, contents.len(), file.content.len()]));
        contents.write_all(&file.content).unwrap();
    }
    let program = "
import io, json, sys, zipfile
contents = open(sys.argv[2], 'rb').read()
out = io.BytesIO()
with zipfile.ZipFile(out, 'w') as archive:
    for path, mode, stored, start, size in json.load(open(sys.argv[1])):
        info = zipfile.ZipInfo(path, (2024, 5, 6, 7, 8, 10))
        info.external_attr, info.create_system = mode << 16, 3
        info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
        archive.writestr(info, contents[start:start + size])
sys.stdout.buffer.write(out.getvalue())
";
    python(program, &[Value::from(listing).to_string().as_bytes(), &contents])
}

/// What Python finds in a zip: `path mode method compressed sha256`, checksums checked, and that of the whole.
fn unzip(bytes: &[u8]) -> Vec<(String, Value)> {
    let program = "
import hashlib, json, sys, zipfile
found = []
with zipfile.ZipFile(sys.argv[1]) as archive:
    assert archive.testzip() is None
    for info in archive.infolist():
        found.append([info.filename, {
            'mode': oct(info.external_attr >> 16), 'date': info.date_time, 'compressed': info.compress_size,
            'method': info.compress_type, 'sha256': hashlib.sha256(archive.read(info)).hexdigest()}])
print(json.dumps(found))
";
    let found: Value = serde_json::from_slice(&python(program, &[bytes])).unwrap();
    let found = found.as_array().unwrap().iter();
    found.map(|pair| (pair[0].as_str().unwrap().to_owned(), pair[1].clone())).collect()
}

fn sha256(bytes: &[u8]) -> String {
    let program =
        "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest(), end='')";
    String::from_utf8(python(program, &[bytes])).unwrap()
}

/// A key as CDK makes it of a content.
fn hash(seed: &str) -> String {
    sha256(seed.as_bytes())
}

/// One test's assembly, buckets and run.
struct Estate<'a> {
    world: &'a World,
    name: String,
    bucket: String,
    assembly: String,
    files: Vec<Value>,
}

impl<'a> Estate<'a> {
    fn new(world: &'a World, name: &str) -> Self {
        let bucket = format!("assets-of-{}", name.to_lowercase());
        world.aws.api().create_bucket(&bucket).unwrap();
        Self { world, name: name.to_owned(), bucket, assembly: String::new(), files: Vec::new() }
    }

    fn zipped(mut self, files: &[Packed]) -> Self {
        self.assembly = self.world.aws.upload_zip(&zip(files)).unwrap();
        self
    }

    fn below_a_prefix(mut self, files: &[Packed]) -> Self {
        let (bucket, prefix) = (self.world.aws.runs_bucket(), format!("uploads/{}/", self.name));
        for file in files {
            self.world
                .aws
                .api()
                .put_object(bucket, &format!("{prefix}{}", file.path), &file.content)
                .unwrap();
        }
        self.assembly = format!("s3://{bucket}/{prefix}");
        self
    }

    fn publishes(self, path: &str, packaging: &str, key: &str) -> Self {
        let bucket = self.bucket.clone();
        self.publishes_to(path, packaging, &bucket, key)
    }

    fn publishes_to(mut self, path: &str, packaging: &str, bucket: &str, key: &str) -> Self {
        self.files.push(json!({
            "id": "an id", "name": format!("{}/{path}", self.name), "path": path, "packaging": packaging,
            "bucket": bucket, "key": key,
        }));
        self
    }

    fn run(&self, number: u32) -> Value {
        let name = format!("publish-{}-{number}", self.name);
        json!({"execution": format!("arn:of:{name}"), "name": name, "operation": "deploy", "dryRun": false})
    }

    /// Invokes the function for a run of this number; or the code of the failure and its cause.
    fn try_publish(&self, number: u32) -> Result<Value, (String, Value)> {
        let (aws, run) = (&self.world.aws, self.run(number));
        let key = format!("runs/{}/{}/{REGION}/assets.json", run["name"].as_str().unwrap(), self.name);
        let document = json!({"assembly": self.assembly, "files": self.files});
        aws.api().put_object(aws.runs_bucket(), &key, document.to_string().as_bytes()).unwrap();
        let payload = json!({"run": run, "stack": {"stack": self.name, "region": REGION}});
        match aws.api().invoke("cdkd-publish-assets", &payload) {
            Ok(answer) => Ok(answer),
            Err(Error::Function { kind, message, .. }) => {
                Err((kind, serde_json::from_str(&message).unwrap_or(Value::String(message))))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Published and skipped of an invocation that is through.
    #[track_caller]
    fn publish(&self, number: u32) -> (u64, u64) {
        let answer = self.try_publish(number).unwrap();
        assert_eq!((&answer["done"], &answer["left"]), (&json!(true), &json!(0)), "{answer}");
        (answer["published"].as_u64().unwrap(), answer["skipped"].as_u64().unwrap())
    }

    #[track_caller]
    fn object(&self, key: &str) -> Vec<u8> {
        self.world.aws.api().get_object(&self.bucket, key).unwrap().unwrap_or_else(|| panic!("no {key}"))
    }

    fn content_type(&self, key: &str) -> String {
        let path = format!("/{}/{key}", self.bucket);
        let answer = self.world.aws.api().rest("s3", Method::HEAD, &path, &[], &[]).unwrap();
        answer.header("content-type").unwrap().to_owned()
    }

    /// The operations on this test's bucket since a mark, counted.
    fn calls(&self, mark: u64) -> BTreeMap<String, usize> {
        let mut calls = BTreeMap::new();
        for call in self.world.since(mark) {
            if call.function.is_some() && call.resource.starts_with(&self.bucket) {
                *calls.entry(call.operation).or_insert(0) += 1;
            }
        }
        calls.remove("GetBucketLocation");
        calls
    }

    /// A failure with this code that says all that and leaves nothing in the bucket.
    #[track_caller]
    fn refused(&self, code: &str, says: &[&str]) -> Value {
        let (kind, cause) = self.try_publish(1).unwrap_err();
        assert_eq!(kind, code, "{cause}");
        let text = cause.to_string();
        for part in says {
            assert!(text.contains(part), "no `{part}` in {cause}");
        }
        assert!(cause["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{cause}");
        assert_eq!(self.world.aws.api().list_objects(&self.bucket, "").unwrap(), [""; 0]);
        cause
    }
}

/// A function with a tool, links to a file and to a folder in it, and one to a folder beside it.
fn function() -> Vec<Packed> {
    vec![
        file("manifest.json", "{}"),
        file("asset.f/lib/b.py", "b = 1\n".repeat(500)),
        file("asset.f/index.py", "import lib.b\n".repeat(100)),
        tool("asset.f/bin/tool", "#!/bin/sh\necho tool\n"),
        file("asset.f/lib/ü.txt", "umlaut"),
        file("asset.f/empty", ""),
        Packed { stored: true, ..file("asset.f/stored.bin", noise(1, 3000)) },
        link("asset.f/bin/alias", "tool"),
        link("asset.f/modules", "lib"),
        link("asset.f/shared", "../asset.g/deep"),
        file("asset.g/deep/er/c.txt", "c"),
        file("asset.h.json", "{\"a\": 1}".repeat(1000)),
    ]
}

#[test]
fn a9_a_zip_becomes_archives_with_links_and_bits_and_files_as_they_are() {
    let world = world();
    let _here = world.among_others();
    let (archive, plain) = (format!("some/prefix/{}.zip", hash("f")), format!("{}.json", hash("h")));
    let estate = Estate::new(&world, "Zipped")
        .zipped(&function())
        .publishes("asset.f", "zip", &archive)
        .publishes("asset.h.json", "file", &plain);
    assert_eq!(estate.publish(1), (2, 0));
    assert_eq!(estate.object(&plain), "{\"a\": 1}".repeat(1000).as_bytes());
    assert_eq!(estate.content_type(&plain), "application/json");
    assert_eq!(estate.content_type(&archive), "application/zip");

    let bytes = estate.object(&archive);
    let entries = unzip(&bytes);
    let content = |path: &str| function().into_iter().find(|file| file.path == path).unwrap().content;
    let expected = [
        ("bin/alias", "0o100755", "asset.f/bin/tool", 8),
        ("bin/tool", "0o100755", "asset.f/bin/tool", 8),
        ("empty", "0o100644", "asset.f/empty", 8),
        ("index.py", "0o100644", "asset.f/index.py", 8),
        ("lib/b.py", "0o100644", "asset.f/lib/b.py", 8),
        ("lib/ü.txt", "0o100644", "asset.f/lib/ü.txt", 8),
        ("modules/b.py", "0o100644", "asset.f/lib/b.py", 8),
        ("modules/ü.txt", "0o100644", "asset.f/lib/ü.txt", 8),
        ("shared/er/c.txt", "0o100644", "asset.g/deep/er/c.txt", 8),
        ("stored.bin", "0o100644", "asset.f/stored.bin", 0),
    ];
    assert_eq!(entries.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), expected.map(|it| it.0));
    for ((name, found), (_, mode, source, method)) in entries.iter().zip(expected) {
        assert_eq!((&found["mode"], &found["method"]), (&json!(mode), &json!(method)), "{name}");
        assert_eq!(found["sha256"], sha256(&content(source)), "{name}");
        assert_eq!(found["date"], json!([1980, 1, 1, 0, 0, 0]), "{name}");
    }
    // Another zip of the same files, in another order: the same bytes.
    let mut files = function();
    files.reverse();
    let other = format!("{}.zip", hash("other"));
    let estate = Estate { files: Vec::new(), ..estate }.zipped(&files).publishes("asset.f", "zip", &other);
    assert_eq!(estate.publish(2), (1, 0));
    assert!(estate.object(&other) == bytes, "an archive depends on the order of its source");
}

#[test]
fn a_prefix_becomes_archives_and_files_are_copied_inside_s3() {
    let world = world();
    let _here = world.among_others();
    let files: Vec<Packed> =
        function().into_iter().filter(|file| file.mode & 0o170_000 == 0o100_000).collect();
    let (archive, plain) = (format!("{}.zip", hash("pf")), format!("{}.json", hash("ph")));
    let estate = Estate::new(&world, "Prefixed")
        .below_a_prefix(&files)
        .publishes("asset.f", "zip", &archive)
        .publishes("asset.h.json", "file", &plain);
    let mark = world.mark();
    assert_eq!(estate.publish(1), (2, 0));
    assert_eq!(estate.calls(mark).get("CopyObject"), Some(&1), "{:?}", estate.calls(mark));
    assert_eq!(estate.object(&plain), "{\"a\": 1}".repeat(1000).as_bytes());
    assert_eq!(estate.content_type(&plain), "application/json");
    let entries = unzip(&estate.object(&archive));
    let names: Vec<_> = entries.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["bin/tool", "empty", "index.py", "lib/b.py", "lib/ü.txt", "stored.bin"]);
    for (name, found) in &entries {
        let content = &files.iter().find(|file| file.path == format!("asset.f/{name}")).unwrap().content;
        assert_eq!(found["sha256"], sha256(content), "{name}");
        assert_eq!(found["mode"], "0o100755", "{name}: nothing says what may be run");
        assert!(
            content.len() < 1000 || found["compressed"].as_u64().unwrap() < 3100,
            "{name} is not compressed"
        );
    }
    // Its size was not known beforehand; what it was made of is.
    let mark = world.mark();
    assert_eq!(estate.publish(2), (0, 2));
    assert_eq!(world.writes(mark, &estate.bucket), [""; 0]);
    let changed = file("asset.f/index.py", "changed");
    let estate = estate.below_a_prefix(&[changed]);
    assert_eq!(estate.publish(3), (1, 1));
    assert_eq!(unzip(&estate.object(&archive))[2].1["sha256"], sha256(b"changed"));
}

#[test]
fn large_assets_are_streamed_in_parts() {
    let world = world();
    let _here = world.among_others();
    let text = b"a line that compresses\n".repeat(500_000);
    let files = [
        file("manifest.json", "{}"),
        file("asset.f/a.txt", "first"),
        Packed { stored: true, ..file("asset.f/big.bin", noise(7, 20 << 20)) },
        file("asset.f/text", text.clone()),
        file("asset.f/z.txt", "last"),
        file("asset.plain", text.clone()),
        Packed { stored: true, ..file("asset.raw", noise(8, 9 << 20)) },
    ];
    for (name, zipped) in [("LargeZip", true), ("LargePrefix", false)] {
        let [archive, plain, raw] =
            ["f", "plain", "raw"].map(|it| format!("{}.bin", hash(&format!("{name}{it}"))));
        let estate = Estate::new(&world, name);
        let estate = if zipped { estate.zipped(&files) } else { estate.below_a_prefix(&files) };
        let estate = estate
            .publishes("asset.f", "zip", &archive)
            .publishes("asset.plain", "file", &plain)
            .publishes("asset.raw", "file", &raw);
        let mark = world.mark();
        assert_eq!(estate.publish(1), (3, 0), "{name}");
        let calls = estate.calls(mark);
        assert_eq!(
            calls.get("CompleteMultipartUpload"),
            Some(if zipped { &3 } else { &1 }),
            "{name}: {calls:?}"
        );
        assert!(estate.object(&plain) == text, "{name}");
        assert!(estate.object(&raw) == files[6].content, "{name}");
        let entries = unzip(&estate.object(&archive));
        assert_eq!(entries.len(), 4, "{name}");
        for (entry, found) in &entries {
            let content = &files.iter().find(|file| file.path == format!("asset.f/{entry}")).unwrap().content;
            assert_eq!(found["sha256"], sha256(content), "{name}: {entry}");
        }
        let mark = world.mark();
        assert_eq!(estate.publish(2), (0, 3), "{name}");
        assert_eq!(world.writes(mark, &estate.bucket), [""; 0], "{name}");
    }
}

#[test]
fn a7_what_is_there_counts_only_if_it_is_whole_and_the_same() {
    let world = world();
    let _here = world.among_others();
    let (archive, plain) = (format!("{}.zip", hash("a7f")), format!("{}.json", hash("a7h")));
    let estate = Estate::new(&world, "Halves")
        .zipped(&function())
        .publishes("asset.f", "zip", &archive)
        .publishes("asset.h.json", "file", &plain);
    assert_eq!(estate.publish(1), (2, 0));
    let whole = estate.object(&archive);
    let mark = world.mark();
    assert_eq!(estate.publish(2), (0, 2));
    assert_eq!(world.writes(mark, &estate.bucket), [""; 0]);
    // Cut off, empty, longer.
    let api = world.aws.api();
    for half in [&whole[..whole.len() / 2], b"", &[&whole[..], b"x"].concat()] {
        api.put_object(&estate.bucket, &archive, half).unwrap();
        assert_eq!(estate.publish(3), (1, 1), "{} bytes", half.len());
        assert!(estate.object(&archive) == whole);
    }
    // As long, but with another checksum.
    let other = vec![b'?'; estate.object(&plain).len()];
    let checksum = [("x-amz-sdk-checksum-algorithm", "CRC32".to_owned())];
    let path = format!("/{}/{plain}", estate.bucket);
    assert!(api.rest("s3", Method::PUT, &path, &checksum, &other).unwrap().status.is_success());
    assert_eq!(estate.publish(4), (1, 1));
    assert_eq!(estate.object(&plain), "{\"a\": 1}".repeat(1000).as_bytes());
}

#[test]
fn a7_a_publisher_that_dies_leaves_nothing_that_counts() {
    let world = world();
    let _alone = world.alone();
    let archive = format!("{}.zip", hash("killed"));
    let files =
        [file("manifest.json", "{}"), Packed { stored: true, ..file("asset.f/big", noise(3, 20 << 20)) }];
    let estate = Estate::new(&world, "Killed").zipped(&files).publishes("asset.f", "zip", &archive);
    for operation in ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"] {
        let rule = world.rule(Rule::on("s3", operation).resource(&estate.bucket).nth(1).kill_before());
        let (kind, _) = estate.try_publish(1).unwrap_err();
        assert_ne!(kind, "InternalError", "{operation}");
        assert_eq!(world.aws.api().get_object(&estate.bucket, &archive).unwrap(), None, "{operation}");
        drop(rule);
    }
    let mark = world.mark();
    assert_eq!(estate.publish(1), (1, 0));
    assert_eq!(unzip(&estate.object(&archive))[0].1["sha256"], sha256(&files[1].content));
    // What the dead left is looked for, and left for a day: its owner might live.
    let calls = estate.calls(mark);
    let looked = |it: &cdkd_wire::Entry| it.operation == "ListMultipartUploads" && it.status == Some(200);
    assert_eq!(world.since(mark).iter().filter(|it| looked(it)).count(), 1, "{calls:?}");
    assert_eq!(calls.get("AbortMultipartUpload"), None, "{calls:?}");
}

#[test]
fn an_answer_that_is_lost_does_not_matter() {
    let world = world();
    let _alone = world.alone();
    let (archive, plain) = (format!("{}.zip", hash("lost")), hash("lost plain"));
    let big = Packed { stored: true, ..file("asset.f/big", noise(6, 20 << 20)) };
    let files = [file("manifest.json", "{}"), big, file("asset.plain", "plain")];
    let estate = Estate::new(&world, "Lost").zipped(&files).publishes("asset.f", "zip", &archive).publishes(
        "asset.plain",
        "file",
        &plain,
    );
    let rules = ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "PutObject"]
        .map(|operation| world.rule(Rule::on("s3", operation).resource(&estate.bucket).nth(1).drop_after()));
    assert_eq!(estate.publish(1), (2, 0));
    drop(rules);
    assert_eq!(unzip(&estate.object(&archive))[0].1["sha256"], sha256(&files[1].content));
    assert_eq!(estate.object(&plain), b"plain");
    assert_eq!(estate.publish(1), (0, 2));
}

#[test]
fn a_part_that_fails_leaves_no_parts_behind() {
    let world = world();
    let _alone = world.alone();
    let archive = format!("{}.zip", hash("failed"));
    let files =
        [file("manifest.json", "{}"), Packed { stored: true, ..file("asset.f/big", noise(4, 30 << 20)) }];
    let estate = Estate::new(&world, "Failed").zipped(&files).publishes("asset.f", "zip", &archive);
    let rule = world.rule(Rule::on("s3", "UploadPart").resource(&estate.bucket).nth(2).answer(
        403,
        "AccessDenied",
        "Access Denied",
    ));
    let cause = estate.refused("AccessDenied", &["s3:PutObject", "Failed/asset.f"]);
    assert_eq!(cause["details"]["permission"], "s3:PutObject");
    drop(rule);
    let uploads = world.aws.api().rest("s3", Method::GET, &format!("/{}?uploads=", estate.bucket), &[], &[]);
    let uploads = Xml::parse(&uploads.unwrap().text()).unwrap();
    assert_eq!(uploads.all("Upload").len(), 0);
}

#[test]
fn a8_a_key_that_is_no_hash_is_written_by_every_run_once() {
    let world = world();
    let _here = world.among_others();
    let estate = Estate::new(&world, "Latest")
        .zipped(&function())
        .publishes("asset.f", "zip", "latest/code.zip")
        .publishes("asset.h.json", "file", "latest/X.template.json");
    assert_eq!(estate.publish(1), (2, 0));
    assert_eq!(estate.publish(1), (0, 2), "a retry of the same run");
    let mark = world.mark();
    assert_eq!(estate.publish(2), (2, 0));
    assert_eq!(world.writes(mark, &estate.bucket).len(), 2);
}

#[test]
fn a_bucket_of_many_objects_is_listed_as_far_as_that_pays() {
    let world = world();
    let _here = world.among_others();
    let mut files = vec![file("manifest.json", "{}")];
    files.extend((0..20).map(|n| file(&format!("asset.{n}/f"), format!("content of {n}"))));
    let mut estate = Estate::new(&world, "Crowded").zipped(&files);
    // Ten before and ten behind 1,100 objects of others.
    for n in 0..20 {
        let key = format!("{}{}.zip", if n < 10 { "0" } else { "f" }, &hash_of(n)[1..]);
        estate = estate.publishes(&format!("asset.{n}"), "zip", &key);
    }
    let api = world.aws.api();
    for n in 0..1100 {
        api.put_object(&estate.bucket, &format!("5{}", &hash_of(n)[1..]), b"another").unwrap();
    }
    let mark = world.mark();
    assert_eq!(estate.publish(1), (20, 0));
    let calls = estate.calls(mark);
    assert_eq!(calls.get("ListObjectsV2"), Some(&1), "{calls:?}");
    assert_eq!(calls.get("HeadObject"), Some(&10), "{calls:?}: those behind the page");
    let mark = world.mark();
    assert_eq!(estate.publish(2), (0, 20));
    let calls = estate.calls(mark);
    assert_eq!((calls.get("HeadObject"), calls.get("PutObject")), (Some(&10), None), "{calls:?}");
    // One of each half is gone, one cut off.
    for n in [3, 13] {
        api.delete_object(&estate.bucket, estate.files[n]["key"].as_str().unwrap()).unwrap();
        api.put_object(&estate.bucket, estate.files[n + 1]["key"].as_str().unwrap(), b"half").unwrap();
    }
    assert_eq!(estate.publish(3), (4, 16));
    for n in [3, 4, 13, 14] {
        let object = estate.object(estate.files[n]["key"].as_str().unwrap());
        assert_eq!(unzip(&object)[0].1["sha256"], sha256(format!("content of {n}").as_bytes()));
    }
}

#[test]
fn a6_two_stacks_publish_each_object_once() {
    let world = world();
    let _here = world.among_others();
    let key = format!("{}.json", hash("a6"));
    let estate = Estate::new(&world, "Several").zipped(&function()).publishes("asset.h.json", "file", &key);
    let run = estate.run(1);
    let second = json!({"assembly": estate.assembly, "files": [
        estate.files[0],
        {"id": "an id", "name": "n", "path": "asset.h.json", "packaging": "file", "bucket": estate.bucket, "key": format!("p/{key}")},
    ]});
    let api = world.aws.api();
    for (stack, document) in
        [("A", json!({"assembly": estate.assembly, "files": estate.files})), ("B", second)]
    {
        let place = format!("runs/{}/{stack}/{REGION}/assets.json", run["name"].as_str().unwrap());
        api.put_object(world.aws.runs_bucket(), &place, document.to_string().as_bytes()).unwrap();
    }
    let stacks = json!([{"stack": "A", "region": REGION}, {"stack": "B", "region": REGION}]);
    let answer = api.invoke("cdkd-publish-assets", &json!({"run": run, "stacks": stacks})).unwrap();
    assert_eq!(answer, json!({"done": true, "published": 2, "skipped": 0, "left": 0}));
    assert_eq!(api.list_objects(&estate.bucket, "").unwrap(), [key.clone(), format!("p/{key}")]);
}

#[test]
fn what_the_assembly_lacks_is_named_all_at_once() {
    let world = world();
    let _here = world.among_others();
    for (name, zipped) in [("LacksZip", true), ("LacksPrefix", false)] {
        let estate = Estate::new(&world, name);
        let files: Vec<Packed> =
            function().into_iter().filter(|it| it.mode & 0o170_000 == 0o100_000).collect();
        let estate = if zipped { estate.zipped(&files) } else { estate.below_a_prefix(&files) };
        let estate = estate
            .publishes("asset.h.json", "file", &hash("there"))
            .publishes("asset.none", "zip", &hash("none"))
            .publishes("asset.f/none.txt", "file", &hash("none2"))
            .publishes("asset.f", "file", &hash("folder"))
            .publishes("asset.h.json", "zip", &hash("file"));
        let cause = estate
            .refused("InvalidAssembly", &["asset.none", "asset.f/none.txt", "is a folder", "is a file"]);
        assert_eq!(cause["details"]["errors"].as_array().unwrap().len(), 4, "{cause}");
    }
    let dangling =
        [file("manifest.json", "{}"), file("asset.l/a", "a"), link("asset.l/b", "../asset.none/b")];
    let estate = Estate::new(&world, "Dangling").zipped(&dangling).publishes("asset.l", "zip", &hash("l"));
    estate.refused("InvalidAssembly", &["asset.l/b"]);
    let escaping = [file("manifest.json", "{}"), link("asset.l/b", "../../../etc/passwd")];
    let estate = Estate::new(&world, "Escaping").zipped(&escaping).publishes("asset.l", "zip", &hash("l"));
    estate.refused("UnsafeAssemblyPath", &["asset.l/b"]);
}

#[test]
fn a31_a_bucket_of_another_account_is_not_written_to() {
    let world = world();
    let _here = world.among_others();
    let stranger = world.aws.api().of_account(STRANGER);
    let theirs = format!("cdk-hnb659fds-assets-{STRANGER}-{REGION}");
    for bucket in [theirs.as_str(), "somebody-elses"] {
        stranger.create_bucket(bucket).unwrap();
        let policy = json!({"Version": "2012-10-17", "Statement": [{
            "Effect": "Allow", "Principal": {"AWS": format!("arn:aws:iam::{ACCOUNT}:root")}, "Action": "s3:*",
            "Resource": [format!("arn:aws:s3:::{bucket}"), format!("arn:aws:s3:::{bucket}/*")],
        }]});
        let path = format!("/{bucket}?policy=");
        let put = stranger.rest("s3", Method::PUT, &path, &[], policy.to_string().as_bytes()).unwrap();
        assert!(put.status.is_success(), "{}", put.text());
        let name = if bucket == theirs { "ForeignCdk" } else { "ForeignOwn" };
        let estate = Estate::new(&world, name).zipped(&function());
        let estate = estate.publishes_to("asset.h.json", "file", bucket, &hash("foreign"));
        let says = if bucket == theirs { STRANGER } else { "belongs to account" };
        estate.refused("AccessDenied", &[bucket, "s3:", "asset.h.json", says]);
        assert_eq!(stranger.list_objects(bucket, "").unwrap(), [""; 0]);
    }
}

#[test]
fn a14_buckets_that_are_gone_and_buckets_of_cdkd_are_not_for_assets() {
    let world = world();
    let _here = world.among_others();
    let gone = Estate::new(&world, "Gone").zipped(&function());
    let gone = gone.publishes_to("asset.h.json", "file", "there-is-no-such-bucket", &hash("gone"));
    gone.refused("BucketUnavailable", &["there-is-no-such-bucket", "cdkd-bootstrap"]);
    for (name, bucket) in [("ToState", world.aws.state_bucket()), ("ToRuns", world.aws.runs_bucket())] {
        let key = "cdkd/Victim/us-east-1/state.json";
        let estate = Estate::new(&world, name).zipped(&function());
        let estate = estate.publishes_to("asset.h.json", "file", bucket, key);
        estate.refused("AccessDenied", &["s3:PutObject", bucket]);
        assert_eq!(world.aws.api().get_object(bucket, key).unwrap(), None);
    }
}

#[test]
fn a31_a_destination_of_another_region_is_published_there() {
    let world = world();
    let _here = world.among_others();
    let far = world.aws.api().in_region(FAR);
    far.create_bucket("assets-far-away").unwrap();
    let key = format!("{}.zip", hash("far"));
    for (name, zipped) in [("FarZip", true), ("FarPrefix", false)] {
        let estate = Estate::new(&world, name);
        let files: Vec<Packed> =
            function().into_iter().filter(|it| it.mode & 0o170_000 == 0o100_000).collect();
        let estate = if zipped { estate.zipped(&files) } else { estate.below_a_prefix(&files) };
        let plain = format!("{name}/{}.json", hash("far"));
        let estate = estate
            .publishes_to("asset.f", "zip", "assets-far-away", &format!("{name}/{key}"))
            .publishes_to("asset.h.json", "file", "assets-far-away", &plain);
        assert_eq!(estate.publish(1), (2, 0), "{name}");
        let bytes = far.get_object("assets-far-away", &format!("{name}/{key}")).unwrap().unwrap();
        assert_eq!(unzip(&bytes).len(), 6, "{name}");
        assert!(far.get_object("assets-far-away", &plain).unwrap().is_some(), "{name}");
        assert_eq!(estate.publish(2), (0, 2), "{name}");
    }
}

#[test]
fn an_invocation_that_runs_out_of_time_is_followed_by_one_that_goes_on() {
    let world = world();
    let _alone = world.alone();
    let count = 300;
    let mut files = vec![file("manifest.json", "{}")];
    files.extend((0..count).map(|n| file(&format!("asset.{n}"), format!("content of {n}"))));
    let mut estate = Estate::new(&world, "Slow").zipped(&files);
    for n in 0..count {
        estate = estate.publishes(&format!("asset.{n}"), "file", &hash_of(n));
    }
    let rule =
        world.rule(Rule::on("s3", "PutObject").resource(&estate.bucket).delay_before(Duration::from_secs(2)));
    let first = estate.try_publish(1).unwrap();
    assert_eq!(first["done"], false, "{first}");
    let published = first["published"].as_u64().unwrap();
    assert!(published > 0 && first["left"] == count - published, "{first}");
    assert_eq!(world.aws.api().list_objects(&estate.bucket, "").unwrap().len() as u64, published);
    drop(rule);
    let mark = world.mark();
    assert_eq!(estate.publish(1), (count - published, published));
    assert_eq!(world.writes(mark, &estate.bucket).len() as u64, count - published);

    // One that does not get through although it has all the time there is.
    let rule = world.rule(
        Rule::on("s3", "CreateMultipartUpload")
            .resource("assets-of-tooslow")
            .delay_before(Duration::from_secs(13)),
    );
    let big =
        [file("manifest.json", "{}"), Packed { stored: true, ..file("asset.f/big", noise(5, 20 << 20)) }];
    let estate = Estate::new(&world, "TooSlow").zipped(&big).publishes("asset.f", "zip", &hash("too slow"));
    estate.refused("AssetTooLarge", &["TooSlow/asset.f", "FunctionTimeLimit"]);
    drop(rule);
}

/// A key like a hash, without the trouble.
fn hash_of(n: u64) -> String {
    format!("{n:064x}")
}
