//! Where the documents of an assembly come from.

use super::opening::Opening;
use super::select::Request;
use super::selection::Selection;
use super::zip::{DirectoryRange, TAIL, ZipIndex, inflate, locate_end, read_directory};
use crate::error::{Code, Error, Result};

/// Documents at hand: an assembly in memory. What has to be fetched drives an [`Opening`] itself.
pub trait Source {
    /// The document at a canonical path; `None` if there is none.
    fn document(&self, path: &str) -> Result<Option<Vec<u8>>>;
}

/// Opens the assembly of a source and selects its stacks.
pub fn open(source: &impl Source, request: Request) -> Result<Selection> {
    let mut opening = Opening::new(request);
    loop {
        let needed = opening.need();
        if needed.is_empty() {
            return opening.finish();
        }
        for path in needed {
            let document = source.document(&path)?;
            opening.supply(&path, document)?;
        }
    }
}

/// A zip in memory, read by the same ranges as one in S3.
#[derive(Debug)]
pub struct ZipBytes<'a> {
    bytes: &'a [u8],
    index: ZipIndex,
}

impl<'a> ZipBytes<'a> {
    /// Reads the zip's directory.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let size = bytes.len() as u64;
        let mut tail = range(bytes, size.saturating_sub(TAIL), TAIL);
        let directory @ DirectoryRange { offset, len } = locate_end(tail, size)?;
        if !directory.within(tail.len() as u64) {
            tail = range(bytes, offset, len);
        }
        Ok(Self { bytes, index: read_directory(tail, size)? })
    }

    pub fn index(&self) -> &ZipIndex {
        &self.index
    }
}

impl Source for ZipBytes<'_> {
    fn document(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(entry) = self.index.document(path)? else { return Ok(None) };
        let (offset, len) = self.index.entry_range(entry);
        inflate(entry, range(self.bytes, offset, len)).map(Some)
    }
}

/// The part of a range that exists.
fn range(bytes: &[u8], offset: u64, len: u64) -> &[u8] {
    let end = offset.saturating_add(len).min(bytes.len() as u64);
    let within = |at: u64| usize::try_from(at).ok();
    within(offset).zip(within(end)).and_then(|(start, end)| bytes.get(start..end)).unwrap_or_default()
}

/// The assembly's address names nothing, or nothing that this account may read.
pub fn assembly_not_found(address: &str) -> Error {
    Error::new(Code::AssemblyNotFound, format!("there is no assembly at `{address}`, or no right to read it"))
        .hint("upload the content of `cdk.out` there, as a zip or as a prefix that ends with `/`")
        .detail("assembly", address)
}
