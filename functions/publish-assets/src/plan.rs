//! What becomes of each file on the list.

use cdkd_aws::store::objects::Kind;
use cdkd_core::assembly::asset_manifest::Packaging;
use cdkd_core::assembly::zip::{Method, check_method};
use cdkd_core::assets::archive::{self, Content, Item, UNKNOWN_MODE};
use cdkd_core::assets::collect::File;
use cdkd_core::assets::skip::{Wanted, is_content_addressed};
use cdkd_core::assets::tree::Found;
use cdkd_core::{Code, Error, Result};

use crate::sink::MAX_OBJECT;
use crate::source::{Held, Source};

/// An object to be written.
pub(crate) struct Job<'a> {
    pub file: &'a File,
    pub body: Body<'a>,
    pub wanted: Wanted,
    pub kind: Kind,
    /// Bytes at most.
    pub most: u64,
}

/// What it is made of.
pub(crate) enum Body<'a> {
    /// A file as it is.
    File(&'a Held),
    /// An archive of these.
    Archive(Vec<Item<&'a Held>>),
}

/// Plans all files; every fault is told at once.
pub(crate) fn plan<'a>(source: &'a Source, files: &'a [File], execution: &str) -> Result<Vec<Job<'a>>> {
    let (mut jobs, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match job(source, file, execution) {
            Ok(job) => jobs.push(job),
            Err(error) => errors.push(error.detail("asset", file.name.as_str())),
        }
    }
    Error::all(errors)?;
    Ok(jobs)
}

fn job<'a>(source: &'a Source, file: &'a File, execution: &str) -> Result<Job<'a>> {
    let fault = |what: &str| {
        Error::new(
            Code::InvalidAssembly,
            format!("asset `{}`: `{}` in the assembly {what}", file.name, file.path),
        )
        .hint("upload all of `cdk.out`, as `cdk synth` left it")
        .detail("path", file.path.as_str())
    };
    let mut wanted = Wanted::default();
    let (body, most) = match (source.tree.find(&file.path)?, file.packaging) {
        (Found::Nothing, _) => return Err(fault("is not there, or is an empty folder")),
        (Found::Folder(_), Packaging::File) => {
            return Err(fault("is a folder, but is to be published as a file"));
        }
        (Found::File(_), Packaging::Zip) => {
            return Err(fault("is a file, but is to be published as a folder"));
        }
        (Found::File(held), Packaging::File) => {
            if let Some(entry) = &held.entry {
                check_method(entry)?;
                wanted.crc32 = Some(entry.crc);
            }
            wanted.size = Some(held.size());
            (Body::File(held), held.size())
        }
        (Found::Folder(folder), Packaging::Zip) => {
            let files = source.tree.files_below(&folder)?;
            let items: Vec<_> = files.into_iter().map(item).collect::<Result<_>>()?;
            wanted.size = archive::size(&items)?;
            if wanted.size.is_none() {
                wanted.source = Some(archive::fingerprint(&items, |held| held.object.etag.as_str()));
            }
            let most = archive::most(&items)?;
            (Body::Archive(items), most)
        }
    };
    if !is_content_addressed(&file.key) {
        wanted.source = Some(execution.to_owned());
    }
    if most > MAX_OBJECT {
        return Err(Error::new(
            Code::AssetTooLarge,
            format!("asset `{}` has up to {most} bytes; {MAX_OBJECT} can be published", file.name),
        )
        .hint("publish files of that size apart from the app, and refer to them by bucket and key"));
    }
    let content_type = match file.packaging {
        Packaging::Zip => "application/zip".to_owned(),
        Packaging::File => mime_guess::from_path(&file.path).first_or_octet_stream().to_string(),
    };
    let kind = Kind { content_type, source: wanted.source.clone() };
    Ok(Job { file, body, wanted, kind, most })
}

/// Compressed files of a zip are copied as they are, and so is what a zip tool left uncompressed: it does not compress.
fn item((name, held): (String, &Held)) -> Result<Item<&Held>> {
    let (mode, content) = match &held.entry {
        Some(entry) => {
            check_method(entry)?;
            let deflated = entry.method == Method::Deflated;
            let (crc32, compressed, size) = (entry.crc, entry.compressed_size, entry.size);
            (entry.mode, Content::Raw { deflated, crc32, compressed, size })
        }
        None => (UNKNOWN_MODE, Content::Deflate { size: held.len }),
    };
    Ok(Item { name, mode, content, source: held })
}
