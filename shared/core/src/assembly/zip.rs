//! Reading a zip by ranges, without its bytes at hand: every function here takes bytes that the caller fetched.
//!
//! 1. Fetch the last [`TAIL`] bytes of the object (all of it when it is smaller) → [`locate_end`].
//! 2. Unless [`DirectoryRange::within`] says that the tail holds it, fetch the object from
//!    [`DirectoryRange::offset`] on → [`read_directory`].
//! 3. For each document: fetch [`ZipIndex::entry_range`] → [`inflate`].
//!
//! The central directory decides; local headers are read for their length alone. zip64 works. Codes:
//! `InvalidAssembly` for what is no (whole) zip, `UnsafeAssemblyPath` and `AssemblyTooLarge` as named.

use std::collections::BTreeMap;
use std::io::{self, Read};

use rawzip::{CompressionMethod, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipArchive, ZipLocator};

use super::limits::{MAX_DIRECTORY, MAX_DOCUMENT, MAX_ENTRIES, MAX_RATIO, RATIO_EXEMPT};
use super::path::{canonical, unsafe_path};
use crate::error::{Code, Error, Result};

/// How many bytes at the end of the object to fetch first: the longest end record (22 bytes and a comment of up to
/// 65,535), the zip64 records before it, and the whole directory of an assembly of some hundred files.
pub const TAIL: u64 = 128 << 10;

/// Bytes of a local header without its variable part (zip specification, 4.3.7).
const LOCAL_HEADER: u64 = 30;

/// Where the central directory begins; it and the end record reach to the object's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryRange {
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Bytes from there to the object's end.
    pub len: u64,
}

impl DirectoryRange {
    /// Whether the last `tail` bytes of the object hold all of it.
    pub fn within(self, tail: u64) -> bool {
        self.len <= tail
    }
}

/// How an entry's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Stored,
    Deflated,
    /// The number of a method that is not read, or of any method under encryption.
    Other(u16),
}

/// A file or a link of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Canonical path, relative to the assembly's root.
    pub path: String,
    pub method: Method,
    /// Bytes in the archive.
    pub compressed_size: u64,
    /// Bytes inflated, as the directory says.
    pub size: u64,
    pub crc: u32,
    /// Offset of the local header in the object, in bytes.
    pub offset: u64,
    /// Unix mode with the file type in the high bits, such as `0o100644`.
    pub mode: u32,
    /// The content is the target of a symbolic link ([`super::path::link_target`]).
    pub link: bool,
    /// Bytes of the path as stored.
    name_len: u64,
}

/// The files of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZipIndex {
    entries: BTreeMap<String, Entry>,
    /// Where the directory begins, before which all files lie.
    directory: u64,
}

impl ZipIndex {
    /// The entry at a path relative to the assembly's root.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// All entries, by path; directories are none.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The entry of a document, checked before a byte of it is fetched: no link (`UnsafeAssemblyPath`), and of a
    /// believable size (`AssemblyTooLarge`).
    pub fn document(&self, path: &str) -> Result<Option<&Entry>> {
        let Some(entry) = self.get(path) else { return Ok(None) };
        if entry.link {
            return Err(unsafe_path(path, "is a link where a document is expected"));
        }
        if entry.size > MAX_DOCUMENT {
            return Err(too_large(format!(
                "`{path}` has {} bytes; a document may have {MAX_DOCUMENT}",
                entry.size
            )));
        }
        if entry.size > RATIO_EXEMPT && entry.size / MAX_RATIO >= entry.compressed_size {
            return Err(too_large(format!(
                "`{path}` inflates {} bytes to {}, more than {MAX_RATIO} times its size",
                entry.compressed_size, entry.size
            )));
        }
        Ok(Some(entry))
    }

    /// The range of the object that holds the entry: offset and length in bytes. Longer than the entry, since only the
    /// local header itself says how long it is.
    pub fn entry_range(&self, entry: &Entry) -> (u64, u64) {
        let most = LOCAL_HEADER + entry.name_len + u64::from(u16::MAX);
        let wanted = most.saturating_add(entry.compressed_size);
        (entry.offset, wanted.min(self.directory.saturating_sub(entry.offset)))
    }
}

/// Finds the central directory.
///
/// `tail`: the last bytes of the object, [`TAIL`] or all; `object_size`: bytes of the whole object.
pub fn locate_end(tail: &[u8], object_size: u64) -> Result<DirectoryRange> {
    let archive = locate(tail, object_size)?;
    let offset = archive.directory_offset();
    let len = object_size.saturating_sub(offset);
    if archive.entries_hint() > MAX_ENTRIES {
        return Err(too_many(archive.entries_hint()));
    }
    if len > MAX_DIRECTORY {
        return Err(too_large(format!("the zip's directory has {len} bytes; it may have {MAX_DIRECTORY}")));
    }
    Ok(DirectoryRange { offset, len })
}

/// Reads the central directory.
///
/// `tail`: the last bytes of the object, from [`DirectoryRange::offset`] or earlier. Paths are relative to the folder
/// that holds `manifest.json`: the archive's root, else the one folder that everything is in.
pub fn read_directory(tail: &[u8], object_size: u64) -> Result<ZipIndex> {
    let archive = locate(tail, object_size)?;
    let mut index = ZipIndex { entries: BTreeMap::new(), directory: archive.directory_offset() };
    let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    let mut records = archive.entries(&mut buffer);
    let mut seen = 0;
    while let Some(record) = records.next_entry().map_err(|_| broken("its directory is damaged"))? {
        seen += 1;
        if seen > MAX_ENTRIES {
            return Err(too_many(seen));
        }
        let path = record.file_path();
        let mode = record.mode();
        // The resource forks that the Finder packs beside the files.
        if path.as_bytes().starts_with(b"__MACOSX/") || is_root(path.as_bytes()) {
            continue;
        }
        let canonical_path = canonical(path.as_bytes())?;
        if record.is_dir() {
            continue;
        }
        let method = match record.compression_method() {
            _ if record.flags().is_encrypted() => Method::Other(record.compression_method().as_u16()),
            CompressionMethod::STORE => Method::Stored,
            CompressionMethod::DEFLATE => Method::Deflated,
            other => Method::Other(other.as_u16()),
        };
        let entry = Entry {
            path: canonical_path.clone(),
            method,
            compressed_size: record.compressed_size_hint(),
            size: record.uncompressed_size_hint(),
            crc: record.crc32(),
            offset: record.local_header_offset(),
            mode: mode.value(),
            link: mode.is_symlink(),
            name_len: path.as_bytes().len() as u64,
        };
        if entry.offset.saturating_add(entry.compressed_size) > index.directory {
            return Err(broken("an entry reaches into its directory").detail("path", canonical_path));
        }
        if index.entries.insert(canonical_path.clone(), entry).is_some() {
            return Err(unsafe_path(&canonical_path, "occurs twice"));
        }
    }
    if seen != archive.entries_hint() {
        return Err(broken(&format!("it announces {} entries and has {seen}", archive.entries_hint())));
    }
    below_a_file(&index.entries)?;
    Ok(rooted(index))
}

/// The content of an entry.
///
/// `bytes`: what [`ZipIndex::entry_range`] asks for. Reads no more than the entry says and checks its CRC: an entry
/// that inflates to more is refused (`AssemblyTooLarge`), one that is cut or damaged too (`InvalidAssembly`).
pub fn inflate(entry: &Entry, bytes: &[u8]) -> Result<Vec<u8>> {
    let compressed = raw(entry, bytes)?;
    // One byte more than stated tells a lie from the truth.
    let cap = entry.size.saturating_add(1);
    let mut content = Vec::new();
    match entry.method {
        Method::Stored => compressed.take(cap).read_to_end(&mut content),
        Method::Deflated => {
            flate2::bufread::DeflateDecoder::new(compressed).take(cap).read_to_end(&mut content)
        }
        Method::Other(_) => return check_method(entry).map(|()| content),
    }
    .map_err(|_| damaged(entry, "does not inflate"))?;
    let size = content.len() as u64;
    if size > entry.size {
        return Err(too_large(format!(
            "`{}` inflates to more than the {} bytes it states",
            entry.path, entry.size
        )));
    }
    if size < entry.size {
        return Err(damaged(entry, "inflates to less than it states"));
    }
    if rawzip::crc32(&content) != entry.crc {
        return Err(damaged(entry, "does not match its checksum"));
    }
    Ok(content)
}

/// The bytes of an entry as they are in the archive.
///
/// `bytes`: what [`ZipIndex::entry_range`] asks for. `InvalidAssembly`: they are cut off, or the entry is encrypted or
/// compressed by another method than DEFLATE.
pub fn raw<'a>(entry: &Entry, bytes: &'a [u8]) -> Result<&'a [u8]> {
    check_method(entry)?;
    compressed(entry, bytes).ok_or_else(|| damaged(entry, "is cut off or has no local header"))
}

/// Where the bytes of an entry begin: so many behind [`Entry::offset`]. `bytes`: from there on, the local header at
/// least.
pub fn content_start(entry: &Entry, bytes: &[u8]) -> Result<u64> {
    check_method(entry)?;
    start(bytes).map(|start| start as u64).ok_or_else(|| damaged(entry, "has no local header"))
}

/// Refuses what is encrypted or compressed in a way that few readers know.
pub fn check_method(entry: &Entry) -> Result<()> {
    match entry.method {
        Method::Stored | Method::Deflated => Ok(()),
        Method::Other(method) => Err(damaged(
            entry,
            &format!("is encrypted or compressed by method {method}; only plain store and deflate are read"),
        )),
    }
}

/// An entry that cannot be read, and why.
pub fn damaged(entry: &Entry, why: &str) -> Error {
    Error::new(Code::InvalidAssembly, format!("`{}` in the zip {why}", entry.path))
        .hint("upload the assembly again")
        .detail("path", entry.path.as_str())
}

/// The compressed bytes behind the local header.
fn compressed<'a>(entry: &Entry, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let start = start(bytes)?;
    let end = start.checked_add(usize::try_from(entry.compressed_size).ok()?)?;
    bytes.get(start..end)
}

/// Bytes of a local header.
fn start(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..usize::try_from(LOCAL_HEADER).ok()?)?;
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(header.get(at..at + 2)?.try_into().ok()?)));
    if !header.starts_with(b"PK\x03\x04") {
        return None;
    }
    Some(header.len() + half(26)? + half(28)?)
}

fn is_root(path: &[u8]) -> bool {
    matches!(path, b"./" | b".")
}

/// A path below a file or link would be written through it.
fn below_a_file(entries: &BTreeMap<String, Entry>) -> Result<()> {
    for path in entries.keys() {
        let mut folder = super::path::folder(path);
        while !folder.is_empty() {
            if entries.contains_key(folder) {
                return Err(unsafe_path(path, "lies below a file or link"));
            }
            folder = super::path::folder(folder);
        }
    }
    Ok(())
}

/// Moves the root into the one folder that everything is in, if the manifest is there.
fn rooted(index: ZipIndex) -> ZipIndex {
    let Some(top) =
        index.entries.keys().next().and_then(|path| path.split_once('/')).map(|(top, _)| format!("{top}/"))
    else {
        return index;
    };
    let inside = index.entries.keys().all(|path| path.starts_with(&top));
    if !inside || !index.entries.contains_key(&format!("{top}manifest.json")) {
        return index;
    }
    let entries = index
        .entries
        .into_values()
        .map(|mut entry| {
            entry.path.drain(..top.len());
            (entry.path.clone(), entry)
        })
        .collect();
    ZipIndex { entries, directory: index.directory }
}

fn locate(tail: &[u8], object_size: u64) -> Result<ZipArchive<Window<'_>>> {
    let start =
        object_size.checked_sub(tail.len() as u64).ok_or_else(|| broken("it changed while it was read"))?;
    let mut buffer = vec![0; rawzip::RECOMMENDED_BUFFER_SIZE];
    ZipLocator::new()
        .max_search_space(tail.len() as u64)
        .locate_in_reader(Window { start, bytes: tail }, &mut buffer, object_size)
        .map_err(|_| broken("it has no end record, or one that is cut off"))
}

/// The part of an object that was fetched, addressed by offsets in the object.
struct Window<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl ReaderAt for Window<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let outside = || io::Error::new(io::ErrorKind::UnexpectedEof, "before the bytes that were fetched");
        let skip =
            usize::try_from(offset.checked_sub(self.start).ok_or_else(outside)?).map_err(|_| outside())?;
        self.bytes.get(skip..).unwrap_or_default().read(buffer)
    }
}

fn broken(why: &str) -> Error {
    Error::new(Code::InvalidAssembly, format!("the assembly is no readable zip: {why}"))
        .hint("archive the content of `cdk.out` as a zip and upload it again")
}

fn too_large(what: String) -> Error {
    Error::new(Code::AssemblyTooLarge, what)
        .hint("is this the zip of `cdk.out` that `cdk synth` wrote? If it is, upload the folder as a prefix")
}

fn too_many(entries: u64) -> Error {
    too_large(format!("the assembly has {entries} files; it may have {MAX_ENTRIES}"))
}

#[cfg(test)]
mod tests {
    use super::super::source::{Source as _, ZipBytes};
    use super::super::testing::{File, with_stated_size, zip};
    use super::*;
    use proptest::prelude::*;

    fn open(bytes: &[u8]) -> Result<Vec<String>> {
        Ok(ZipBytes::new(bytes)?.index().entries().map(|entry| entry.path.clone()).collect())
    }

    fn code_of<T: std::fmt::Debug>(result: Result<T>) -> Code {
        result.unwrap_err().code()
    }

    #[test]
    fn documents_come_out_as_they_went_in() {
        let long = "{\"a\": 1}".repeat(1000);
        let bytes = zip(&[
            File::new("manifest.json", b"{}").stored(),
            File::new("a/b.json", long.as_bytes()),
            File::new("empty", b""),
        ]);
        let source = ZipBytes::new(&bytes).unwrap();
        assert_eq!(source.document("manifest.json").unwrap().unwrap(), b"{}");
        assert_eq!(source.document("a/b.json").unwrap().unwrap(), long.as_bytes());
        assert_eq!(source.document("empty").unwrap().unwrap(), b"");
        assert_eq!(source.document("a"), Ok(None));
        let entry = source.index().get("a/b.json").unwrap();
        assert_eq!(
            (entry.method, entry.size, entry.mode, entry.link),
            (Method::Deflated, 8000, 0o100_644, false)
        );
    }

    #[test]
    fn bytes_before_the_archive_do_not_matter() {
        let bytes = [b"#!/bin/sh\n".to_vec(), zip(&[File::new("manifest.json", b"{}")])].concat();
        assert_eq!(ZipBytes::new(&bytes).unwrap().document("manifest.json").unwrap().unwrap(), b"{}");
    }

    #[test]
    fn a_top_folder_is_the_root_if_the_manifest_is_in_it() {
        let table: &[(&[&str], &[&str])] = &[
            (&["cdk.out/manifest.json", "cdk.out/a/b"], &["a/b", "manifest.json"]),
            (&["cdk.out/manifest.json", "README"], &["README", "cdk.out/manifest.json"]),
            (&["cdk.out/a/manifest.json"], &["cdk.out/a/manifest.json"]),
            (&["x/manifest.json", "__MACOSX/x/._manifest.json"], &["manifest.json"]),
            (&["./", "./manifest.json"], &["manifest.json"]),
        ];
        for (packed, expected) in table {
            let files: Vec<File<'_>> = packed.iter().map(|path| File::new(path, b"")).collect();
            assert_eq!(open(&zip(&files)).unwrap(), *expected, "{packed:?}");
        }
    }

    #[test]
    fn paths_that_leave_the_assembly_are_refused() {
        let tables: &[&[&str]] = &[
            &["manifest.json", "../evil"],
            &["a/../../evil"],
            &["/etc/passwd"],
            &["a\\b"],
            &["C:/a"],
            &["a\0b"],
            &["../dir/"],
            &["manifest.json", "manifest.json"],
            &["a/b", "a//b"],
            &["a", "a/b"],
        ];
        for packed in tables {
            let files: Vec<File<'_>> = packed.iter().map(|path| File::new(path, b"x")).collect();
            assert_eq!(code_of(open(&zip(&files))), Code::UnsafeAssemblyPath, "{packed:?}");
        }
    }

    #[test]
    fn a_link_is_known_as_one_and_no_document() {
        let bytes = zip(&[File::link("manifest.json", "/etc/passwd"), File::link("asset.1/tool", "../../x")]);
        let source = ZipBytes::new(&bytes).unwrap();
        assert_eq!(code_of(source.document("manifest.json")), Code::UnsafeAssemblyPath);
        let link = source.index().get("asset.1/tool").unwrap();
        assert!(link.link);
        let (offset, len) = source.index().entry_range(link);
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        let target = inflate(link, &bytes[range]).unwrap();
        assert_eq!(code_of(super::super::path::link_target(&link.path, &target)), Code::UnsafeAssemblyPath);
        // Nothing is written or read through a link.
        let through = zip(&[File::link("a", ".."), File::new("a/manifest.json", b"{}")]);
        assert_eq!(code_of(open(&through)), Code::UnsafeAssemblyPath);
    }

    #[test]
    fn bombs_are_too_large() {
        let document = |bytes: &[u8]| ZipBytes::new(bytes).unwrap().document("a");
        let zeros = vec![0; 4 << 20];
        let honest = zip(&[File::new("a", &zeros)]);
        assert_eq!(code_of(document(&honest)), Code::AssemblyTooLarge, "ratio");
        for stated in [0, 1, 1000, 900_000] {
            let lying = with_stated_size(honest.clone(), stated);
            assert_eq!(code_of(document(&lying)), Code::AssemblyTooLarge, "states {stated}");
        }
        let large = with_stated_size(honest, 11 << 20);
        assert_eq!(code_of(document(&large)), Code::AssemblyTooLarge, "document");
        // The same lie about a stored file.
        let stored = with_stated_size(zip(&[File::new("a", b"12345").stored()]), 3);
        assert_eq!(code_of(document(&stored)), Code::AssemblyTooLarge);
    }

    #[test]
    fn damage_is_found() {
        let bytes = zip(&[File::new("a", b"12345").stored()]);
        let content = bytes.windows(5).position(|window| window == b"12345").unwrap();
        let mut flipped = bytes.clone();
        flipped[content] = b'2';
        let error = ZipBytes::new(&flipped).unwrap().document("a").unwrap_err();
        assert_eq!(error.code(), Code::InvalidAssembly);
        assert!(error.message().contains("checksum"), "{error}");
        let short = with_stated_size(bytes.clone(), 6);
        assert_eq!(code_of(ZipBytes::new(&short).unwrap().document("a")), Code::InvalidAssembly);
        let mut method = bytes;
        let record = method.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        method[record + 10] = 93;
        assert_eq!(code_of(ZipBytes::new(&method).unwrap().document("a")), Code::InvalidAssembly);
    }

    #[test]
    fn a_cut_off_zip_is_no_zip() {
        let bytes = zip(&[File::new("manifest.json", b"{}"), File::new("b", b"12345")]);
        for len in 0..bytes.len() {
            assert_eq!(code_of(open(&bytes[..len])), Code::InvalidAssembly, "{len} of {}", bytes.len());
        }
        assert_eq!(code_of(open(b"{\"version\": \"55.0.0\"}")), Code::InvalidAssembly);
        assert_eq!(code_of(locate_end(&bytes, 3)), Code::InvalidAssembly, "tail longer than the object");
    }

    #[test]
    fn zip64_and_a_directory_beyond_the_tail_work_and_too_many_entries_do_not() {
        let pack = |count: u32| {
            let paths: Vec<String> = (0..count).map(|n| format!("asset/{n}")).collect();
            let mut files: Vec<File<'_>> = paths.iter().map(|path| File::new(path, b"").stored()).collect();
            files.push(File::new("manifest.json", b"{}"));
            zip(&files)
        };
        let bytes = pack(70_000);
        let tail = &bytes[bytes.len() - usize::try_from(TAIL).unwrap()..];
        assert!(!locate_end(tail, bytes.len() as u64).unwrap().within(TAIL));
        let source = ZipBytes::new(&bytes).unwrap();
        assert_eq!(source.index().entries().count(), 70_001);
        assert_eq!(source.document("manifest.json").unwrap().unwrap(), b"{}");
        assert_eq!(code_of(open(&pack(100_000))), Code::AssemblyTooLarge);
    }

    fn read_all(bytes: &[u8]) {
        if let Ok(source) = ZipBytes::new(bytes) {
            let paths: Vec<String> = source.index().entries().map(|entry| entry.path.clone()).collect();
            for path in paths {
                let _ = source.document(&path);
            }
        }
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), more in 0u64..1000) {
            read_all(&bytes);
            let _ = read_directory(&bytes, bytes.len() as u64 + more);
            let _ = read_directory(&bytes, u64::MAX - more);
            let ended = [&bytes[..], b"PK\x05\x06", &bytes[..]].concat();
            read_all(&ended);
        }

        #[test]
        fn damaged_archives_do_not_panic(hits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6)) {
            let mut bytes = zip(&[File::new("x/manifest.json", b"{}"), File::new("x/b", &[7; 500]), File::link("x/c", "b")]);
            for (place, byte) in hits {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            read_all(&bytes);
        }
    }
}
