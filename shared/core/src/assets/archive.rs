//! The archive of a folder: what stands around the bytes of its files in a zip, piece by piece.
//!
//! The same files give the same archive, whoever makes it and when: entries sorted by name, the oldest time that zip can
//! say, modes as in the source, files alone (links are what they lead to, folders have no entry), as `cdk-assets` has it.
//!
//! Records are written here and not by rawzip, whose writer puts sizes behind every file: then nobody knows the size of
//! the archive beforehand, which the skip rule asks for, and readers of streams refuse files that are not compressed.
//! Format: PKWARE's APPNOTE, numbers of its sections beside the records.

use sha2::{Digest as _, Sha256};

use crate::error::{Code, Error, Result};

/// What a 32-bit field says when the number is in the zip64 record.
const FULL: u64 = 0xffff_ffff;
/// The same of 16 bits.
const FULL_SHORT: usize = 0xffff;
/// 1980-01-01, the first day that the format knows.
const DATE: u16 = 0x21;
/// The mode of a file whose source says none: everyone may read it.
const READABLE: u32 = 0o644;
/// The mode of files from a prefix, where nothing says what may be run. A tool that may not be run fails; a text that may
/// be run harms nobody.
pub const UNKNOWN_MODE: u32 = 0o755;

/// A file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<S> {
    /// Path in the archive.
    pub name: String,
    /// Unix mode; the type of the file does not matter.
    pub mode: u32,
    pub content: Content,
    /// Where its bytes come from.
    pub source: S,
}

/// How a file's bytes get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// As they are in the source's zip.
    Raw { deflated: bool, crc32: u32, compressed: u64, size: u64 },
    /// Compressed on the way.
    Deflate { size: u64 },
}

impl Content {
    /// Bytes of the file.
    pub fn size(self) -> u64 {
        match self {
            Self::Raw { size, .. } | Self::Deflate { size } => size,
        }
    }

    /// The most bytes that it can take in the archive. DEFLATE stores what it cannot compress, with 5 bytes for each
    /// block of up to 64 KB; encoders make shorter blocks than that.
    pub fn most(self) -> u64 {
        match self {
            Self::Raw { compressed, .. } => compressed,
            Self::Deflate { size } => size.saturating_add(size / 1024).saturating_add(64),
        }
    }

    /// Whether its sizes need 64 bits.
    fn is_long(self) -> bool {
        self.size() >= FULL || self.most() >= FULL
    }
}

/// An archive in the making. Everything between the records is the caller's: after [`header`](Self::header) the bytes of
/// the file, then [`trailer`](Self::trailer).
#[derive(Debug, Default)]
pub struct Writer {
    /// Bytes so far.
    offset: u64,
    /// The central directory so far.
    directory: Vec<u8>,
    entries: usize,
}

/// An entry between its header and its end.
#[derive(Debug)]
pub struct Entry {
    name: Vec<u8>,
    mode: u32,
    content: Content,
    offset: u64,
}

impl Writer {
    /// Begins a file: the local header (4.3.7).
    pub fn header(&mut self, name: &str, mode: u32, content: Content) -> Result<(Vec<u8>, Entry)> {
        let name_len = u16::try_from(name.len()).map_err(|_| {
            Error::new(Code::InvalidAssembly, format!("a path of {} bytes is too long for a zip", name.len()))
                .hint("give the file a shorter path")
        })?;
        let mut record = Vec::with_capacity(50 + name.len());
        let (flags, method, crc32, compressed, size) = fields(name.as_bytes(), content);
        // What comes behind the bytes is nought here.
        let size = if matches!(content, Content::Raw { .. }) { size } else { 0 };
        put(&mut record, &[0x4b50, 0x0403, version(content.is_long()), flags, method, 0, DATE]);
        put32(&mut record, crc32);
        let sizes = if content.is_long() { [FULL, FULL] } else { [compressed, size] };
        for size in sizes {
            put32(&mut record, short(size));
        }
        put(&mut record, &[name_len, if content.is_long() { 20 } else { 0 }]);
        record.extend_from_slice(name.as_bytes());
        if content.is_long() {
            extra(&mut record, &[size, compressed]);
        }
        let entry = Entry { name: name.as_bytes().to_vec(), mode, content, offset: self.offset };
        self.offset += record.len() as u64;
        Ok((record, entry))
    }

    /// Ends a file: what comes behind its bytes, nothing or a data descriptor (4.3.9).
    ///
    /// `compressed`, `crc32`: of what was compressed on the way.
    pub fn trailer(&mut self, entry: &Entry, compressed: u64, crc32: u32) -> Vec<u8> {
        let mut record = Vec::new();
        let long = entry.content.is_long();
        let (flags, method, known_crc32, known, size) = fields(&entry.name, entry.content);
        let (crc32, compressed) = match entry.content {
            Content::Raw { .. } => (known_crc32, known),
            Content::Deflate { .. } => {
                put(&mut record, &[0x4b50, 0x0807]);
                put32(&mut record, crc32);
                for number in [compressed, size] {
                    if long {
                        record.extend_from_slice(&number.to_le_bytes());
                    } else {
                        put32(&mut record, short(number));
                    }
                }
                (crc32, compressed)
            }
        };
        self.offset += compressed + record.len() as u64;
        self.list(entry, flags, method, crc32, compressed, size);
        record
    }

    /// Adds a file to the central directory (4.3.12).
    fn list(&mut self, entry: &Entry, flags: u16, method: u16, crc32: u32, compressed: u64, size: u64) {
        let numbers = [size, compressed, entry.offset];
        let long: Vec<u64> = numbers.into_iter().filter(|number| *number >= FULL).collect();
        let directory = &mut self.directory;
        // Made by a Unix: the mode counts.
        let made_by = 3 << 8 | version(entry.content.is_long() || !long.is_empty());
        let needed = version(entry.content.is_long() || !long.is_empty());
        put(directory, &[0x4b50, 0x0201, made_by, needed, flags, method, 0, DATE]);
        put32(directory, crc32);
        put32(directory, short(compressed));
        put32(directory, short(size));
        let extra_len = if long.is_empty() { 0 } else { 4 + 8 * long.len() };
        // `header` knows that the name has no more than 16 bits.
        put(directory, &[low(entry.name.len()), low(extra_len), 0, 0, 0]);
        let permissions = entry.mode & 0o7777;
        let mode = 0o100_000 | if permissions == 0 { READABLE } else { permissions };
        put32(directory, mode << 16);
        put32(directory, short(entry.offset));
        directory.extend_from_slice(&entry.name);
        if !long.is_empty() {
            extra(directory, &long);
        }
        self.entries += 1;
    }

    /// Ends the archive: central directory and end records (4.3.14 to 4.3.16).
    pub fn finish(mut self) -> Vec<u8> {
        let mut end = std::mem::take(&mut self.directory);
        let (offset, len, entries) = (self.offset, end.len() as u64, self.entries);
        if offset >= FULL || len >= FULL || entries >= FULL_SHORT {
            put(&mut end, &[0x4b50, 0x0606]);
            end.extend_from_slice(&44_u64.to_le_bytes());
            put(&mut end, &[3 << 8 | version(true), version(true)]);
            put32(&mut end, 0);
            put32(&mut end, 0);
            for number in [entries as u64, entries as u64, len, offset] {
                end.extend_from_slice(&number.to_le_bytes());
            }
            put(&mut end, &[0x4b50, 0x0706]);
            put32(&mut end, 0);
            end.extend_from_slice(&(offset + len).to_le_bytes());
            put32(&mut end, 1);
        }
        let count = low(entries.min(FULL_SHORT));
        put(&mut end, &[0x4b50, 0x0605, 0, 0, count, count]);
        put32(&mut end, short(len));
        put32(&mut end, short(offset));
        put(&mut end, &[0]);
        end
    }
}

/// Bytes of the archive, if they are known before it is made: nothing is compressed on the way.
pub fn size<S>(items: &[Item<S>]) -> Result<Option<u64>> {
    let known = items.iter().all(|item| matches!(item.content, Content::Raw { .. }));
    known.then(|| most(items)).transpose()
}

/// The most bytes that the archive can have.
pub fn most<S>(items: &[Item<S>]) -> Result<u64> {
    let mut writer = Writer::default();
    for item in items {
        let (_, entry) = writer.header(&item.name, item.mode, item.content)?;
        writer.trailer(&entry, item.content.most(), 0);
    }
    let offset = writer.offset;
    Ok(offset.saturating_add(writer.finish().len() as u64))
}

/// What an archive is made of, in 64 hexadecimal digits: names, modes, sizes, and what `tag` says of the content.
pub fn fingerprint<'a, S>(items: &'a [Item<S>], tag: impl Fn(&'a S) -> &'a str) -> String {
    use std::fmt::Write as _;
    let mut hash = Sha256::new();
    for item in items {
        // No name has a control character.
        hash.update(format!(
            "{}\n{:o}\n{}\n{}\n",
            item.name,
            item.mode,
            item.content.size(),
            tag(&item.source)
        ));
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Flags, method, CRC-32, compressed size and size as a header says them.
fn fields(name: &[u8], content: Content) -> (u16, u16, u32, u64, u64) {
    // Bit 11: the name is UTF-8.
    let utf8 = if name.is_ascii() { 0 } else { 1 << 11 };
    match content {
        Content::Raw { deflated, crc32, compressed, size } => {
            (utf8, if deflated { 8 } else { 0 }, crc32, compressed, size)
        }
        // Bit 3: CRC-32 and sizes come behind the bytes; the directory repeats this flag and has them all.
        Content::Deflate { size } => (utf8 | 1 << 3, 8, 0, 0, size),
    }
}

/// What a reader has to know: DEFLATE, or zip64.
const fn version(long: bool) -> u16 {
    if long { 45 } else { 20 }
}

fn put(record: &mut Vec<u8>, numbers: &[u16]) {
    for number in numbers {
        record.extend_from_slice(&number.to_le_bytes());
    }
}

fn put32(record: &mut Vec<u8>, number: u32) {
    record.extend_from_slice(&number.to_le_bytes());
}

/// The zip64 extra field (4.5.3).
fn extra(record: &mut Vec<u8>, numbers: &[u64]) {
    put(record, &[1, low(8 * numbers.len())]);
    for number in numbers {
        record.extend_from_slice(&number.to_le_bytes());
    }
}

fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn low(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    fn deflate(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[derive(Clone, Copy)]
    enum How {
        Stored,
        Deflated,
        Streamed,
    }

    fn item(name: &str, mode: u32, content: &[u8], how: How) -> Item<Vec<u8>> {
        let size = content.len() as u64;
        let source = if matches!(how, How::Stored) { content.to_vec() } else { deflate(content) };
        let deflated = matches!(how, How::Deflated);
        let crc32 = rawzip::crc32(content);
        let content = match how {
            How::Streamed => Content::Deflate { size },
            _ => Content::Raw { deflated, crc32, compressed: source.len() as u64, size },
        };
        Item { name: name.to_owned(), mode, content, source }
    }

    fn pack(items: &[(Item<Vec<u8>>, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::default();
        let mut bytes = Vec::new();
        for (item, content) in items {
            let (header, entry) = writer.header(&item.name, item.mode, item.content).unwrap();
            bytes.extend(header);
            bytes.extend(&item.source);
            bytes.extend(writer.trailer(&entry, item.source.len() as u64, rawzip::crc32(content)));
        }
        bytes.extend(writer.finish());
        bytes
    }

    /// Name, mode and content of every entry, as another reader sees them, sums checked.
    fn unpack(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let archive = rawzip::ZipArchive::from_slice(bytes).unwrap();
        archive
            .entries()
            .map(|record| {
                let record = record.unwrap();
                let name = String::from_utf8(record.file_path().as_bytes().to_vec()).unwrap();
                let entry = archive.get_entry(record.wayfinder()).unwrap();
                let mut content = Vec::new();
                match record.compression_method() {
                    rawzip::CompressionMethod::STORE => content.extend_from_slice(entry.data()),
                    _ => drop(
                        flate2::read::DeflateDecoder::new(entry.data()).read_to_end(&mut content).unwrap(),
                    ),
                }
                assert_eq!(content.len() as u64, record.uncompressed_size_hint(), "{name}");
                assert_eq!(rawzip::crc32(&content), record.crc32(), "{name}");
                (name, record.mode().value(), content)
            })
            .collect()
    }

    #[test]
    fn another_reader_finds_what_was_packed() {
        let long = b"text ".repeat(1000);
        let files: [(&str, u32, &[u8], How); 6] = [
            ("a", 0o100_644, b"plain", How::Stored),
            ("bin/run", 0o100_755, &long, How::Deflated),
            ("c/streamed", 0o755, &long, How::Streamed),
            ("empty", 0o600, b"", How::Streamed),
            ("no-mode", 0, b"x", How::Stored),
            ("ü/ß", 0o100_640, &long, How::Streamed),
        ];
        let items: Vec<_> = files
            .iter()
            .map(|(name, mode, content, how)| (item(name, *mode, content, *how), *content))
            .collect();
        let bytes = pack(&items);
        let modes = [0o644, 0o755, 0o755, 0o600, 0o644, 0o640];
        let expected: Vec<_> = files
            .iter()
            .zip(modes)
            .map(|((name, _, content, _), mode)| ((*name).to_owned(), 0o100_000 | mode, content.to_vec()))
            .collect();
        assert_eq!(unpack(&bytes), expected);
        assert_eq!(bytes, pack(&items), "the same again");
    }

    #[test]
    fn the_size_of_raw_copies_is_known_beforehand() {
        let table: &[&[How]] = &[
            &[],
            &[How::Stored],
            &[How::Deflated, How::Stored],
            &[How::Deflated; 20],
            &vec![How::Stored; 70_000],
        ];
        for hows in table {
            let items: Vec<_> = hows
                .iter()
                .enumerate()
                .map(|(n, how)| {
                    (item(&format!("folder/{n}"), 0o644, b"some content", *how), &b"some content"[..])
                })
                .collect();
            let bytes = pack(&items);
            let items: Vec<_> = items.into_iter().map(|(item, _)| item).collect();
            assert_eq!(size(&items).unwrap(), Some(bytes.len() as u64), "{} files", items.len());
            assert_eq!(unpack(&bytes).len(), items.len());
        }
        let streamed = [item("a", 0o644, &vec![7; 100_000], How::Streamed)];
        assert_eq!(size(&streamed).unwrap(), None);
        assert!(most(&streamed).unwrap() > 100_000);
    }

    #[test]
    fn random_bytes_do_not_exceed_the_most() {
        // A generator whose output does not compress (Knuth's MMIX constants).
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for len in [0, 1, 100, 5_000, 70_000, 1 << 20] {
            let content: Vec<u8> = (0..len).map(|_| random()).collect();
            assert!(deflate(&content).len() as u64 <= Content::Deflate { size: len }.most(), "{len}");
        }
    }

    #[test]
    fn long_files_and_archives_are_zip64() {
        // Raw copies of 5 GB that nobody has to hold: the records alone say it.
        let huge = Content::Raw { deflated: true, crc32: 7, compressed: 5 << 30, size: 6 << 30 };
        let small = Content::Raw { deflated: false, crc32: 0, compressed: 3, size: 3 };
        let mut writer = Writer::default();
        let mut positions = Vec::new();
        for (name, content) in
            [("big", huge), ("small", small), ("streamed", Content::Deflate { size: 5 << 30 })]
        {
            positions.push(writer.offset);
            let (header, entry) = writer.header(name, 0o644, content).unwrap();
            let version = u16::from_le_bytes([header[4], header[5]]);
            assert_eq!(version, if name == "small" { 20 } else { 45 }, "{name}");
            let trailer = writer.trailer(&entry, if name == "streamed" { 4 << 30 } else { 0 }, 9);
            assert_eq!(trailer.len(), if name == "streamed" { 24 } else { 0 }, "{name}");
        }
        let offset = writer.offset;
        let end = writer.finish();
        let total = offset + end.len() as u64;
        let window = Behind { start: offset, bytes: &end };
        let mut buffer = vec![0; rawzip::RECOMMENDED_BUFFER_SIZE];
        let archive = rawzip::ZipLocator::new()
            .max_search_space(end.len() as u64)
            .locate_in_reader(window, &mut buffer, total)
            .unwrap();
        assert_eq!(archive.directory_offset(), offset);
        let mut buffer = vec![0; rawzip::MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let mut records = archive.entries(&mut buffer);
        let mut found = Vec::new();
        while let Some(record) = records.next_entry().unwrap() {
            found.push((
                record.compressed_size_hint(),
                record.uncompressed_size_hint(),
                record.local_header_offset(),
                record.crc32(),
            ));
        }
        assert_eq!(
            found,
            [
                (5 << 30, 6 << 30, positions[0], 7),
                (3, 3, positions[1], 0),
                (4 << 30, 5 << 30, positions[2], 9)
            ]
        );
    }

    /// The end of an object whose beginning nobody has.
    #[derive(Debug)]
    struct Behind<'a> {
        start: u64,
        bytes: &'a [u8],
    }

    impl rawzip::ReaderAt for Behind<'_> {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
            let skip =
                usize::try_from(offset.checked_sub(self.start).ok_or(std::io::ErrorKind::UnexpectedEof)?);
            self.bytes.get(skip.unwrap_or(usize::MAX)..).unwrap_or_default().read(buffer)
        }
    }

    #[test]
    fn a_fingerprint_tells_what_differs() {
        let base = || item("a", 0o644, b"x", How::Streamed);
        let print = |items: &[Item<Vec<u8>>], tag: &'static str| fingerprint(items, |_| tag);
        let same = print(&[base()], "t");
        assert_eq!(same, print(&[base()], "t"));
        assert_eq!(same.len(), 64);
        let others = [
            print(&[base()], "u"),
            print(&[Item { name: "b".into(), ..base() }], "t"),
            print(&[Item { mode: 0o755, ..base() }], "t"),
            print(&[Item { content: Content::Deflate { size: 2 }, ..base() }], "t"),
            print(&[base(), base()], "t"),
        ];
        for other in others {
            assert_ne!(same, other);
        }
    }
}
