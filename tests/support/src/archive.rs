//! Archives that come out the same, byte for byte, whoever makes them and when.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use rawzip::time::UtcDateTime;
use rawzip::{CompressionMethod, ZipArchiveWriter};

use crate::error::{Error, Result};

/// A zip in the making: entries sorted by name, the oldest time that zip can say, rights of the caller's choice.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Archive {
    /// Adds a file that everyone may read.
    #[must_use]
    pub fn file(mut self, name: &str, content: Vec<u8>) -> Self {
        self.entries.insert(name.to_owned(), (0o644, content));
        self
    }

    /// Adds a file that everyone may run.
    #[must_use]
    pub fn executable(mut self, name: &str, content: Vec<u8>) -> Self {
        self.entries.insert(name.to_owned(), (0o755, content));
        self
    }

    /// Everything under a folder, with `/` between names.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        Ok(files_under(folder)?
            .into_iter()
            .fold(Self::default(), |archive, (name, it)| archive.file(&name, it)))
    }

    /// The bytes; `level` from 1, quick, to 9, small.
    pub fn zip(&self, level: u32) -> Result<Vec<u8>> {
        let failed = |error: &dyn std::fmt::Display| Error::other(format!("zip: {error}"));
        let time =
            UtcDateTime::from_components(1980, 1, 1, 0, 0, 0, 0).ok_or_else(|| failed(&"no such time"))?;
        let mut bytes = Vec::new();
        let mut zip = ZipArchiveWriter::new(&mut bytes);
        for (name, (rights, content)) in &self.entries {
            let file = zip.new_file(name.as_str()).compression_method(CompressionMethod::DEFLATE);
            let file = file.last_modified(time).unix_permissions(*rights);
            let (mut entry, config) = file.start().map_err(|error| failed(&error))?;
            let mut writer = config.wrap(DeflateEncoder::new(&mut entry, Compression::new(level)));
            writer.write_all(content).map_err(|error| failed(&error))?;
            let (encoder, written) = writer.finish().map_err(|error| failed(&error))?;
            encoder.finish().map_err(|error| failed(&error))?;
            entry.finish(written).map_err(|error| failed(&error))?;
        }
        zip.finish().map_err(|error| failed(&error))?;
        Ok(bytes)
    }
}

/// All files under a folder by their path in it.
pub(crate) fn files_under(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).map_err(Error::at(&next))? {
            let path = entry.map_err(Error::at(&next))?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let content = fs::read(&path).map_err(Error::at(&path))?;
            let parts = path.strip_prefix(folder).unwrap_or(&path).components();
            let parts: Vec<_> = parts.map(|part| part.as_os_str().to_string_lossy()).collect();
            files.insert(parts.join("/"), content);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_rights_are_kept() {
        let one = Archive::default().executable("bootstrap", b"#!".to_vec()).file("a", vec![0; 1000]);
        let two = Archive::default().file("a", vec![0; 1000]).executable("bootstrap", b"#!".to_vec());
        let bytes = one.zip(9).unwrap();
        assert_eq!(bytes, two.zip(9).unwrap());
        assert!(bytes.len() < 600);

        let archive = rawzip::ZipArchive::from_slice(&bytes).unwrap();
        let entries: Vec<_> = archive
            .entries()
            .map(|entry| {
                let entry = entry.unwrap();
                let name = String::from_utf8_lossy(entry.file_path().as_bytes()).into_owned();
                (name, entry.mode().permissions(), entry.uncompressed_size_hint())
            })
            .collect();
        assert_eq!(entries, [("a".to_owned(), 0o644, 1000), ("bootstrap".to_owned(), 0o755, 2)]);
    }
}
