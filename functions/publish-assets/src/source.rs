//! The assembly that assets come from: a zip read by ranges, or objects below a prefix.

use std::rc::Rc;

use cdkd_aws::edge::Invocation;
use cdkd_core::assembly::input::Location;
use cdkd_core::assembly::limits::MAX_ENTRIES;
use cdkd_core::assembly::path::canonical;
use cdkd_core::assembly::source::assembly_not_found;
use cdkd_core::assembly::zip::{Entry, TAIL, damaged, inflate, locate_end, read_directory};
use cdkd_core::assets::spans::spans;
use cdkd_core::assets::tree::Tree;
use cdkd_core::{Code, Error, Result};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

/// How many reads of a stream are under way at once.
pub(crate) const AHEAD: usize = 32;
/// Bytes of the longest path, as Linux has it.
const MAX_LINK: u64 = 4096;

/// An opened assembly.
pub(crate) struct Source {
    pub bucket: String,
    pub tree: Tree<Held>,
}

/// A file of the assembly: where its bytes are.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub object: Rc<Object>,
    /// Where in that object, bytes.
    pub offset: u64,
    /// Bytes of the object to fetch for all of it.
    pub len: u64,
    /// Of a zip: how to read them. `None`: they are the file.
    pub entry: Option<Entry>,
}

/// An object of S3, in one very version.
#[derive(Debug)]
pub(crate) struct Object {
    pub key: String,
    pub etag: String,
}

impl Held {
    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.entry.as_ref().map_or(self.len, |entry| entry.size)
    }
}

impl Source {
    pub async fn open(invocation: &Invocation, location: &Location) -> Result<Self> {
        let tree = match location {
            Location::Zip { bucket, key } => zip(invocation, location, bucket, key).await?,
            Location::Prefix { bucket, prefix } => objects(invocation, bucket, prefix).await?,
        };
        Ok(Self { bucket: location.bucket().to_owned(), tree })
    }

    /// Fetches a part of an object of the assembly, all of what is asked for unless the object ends before.
    pub async fn fetch(&self, invocation: &Invocation, of: &Held, offset: u64, len: u64) -> Result<Vec<u8>> {
        fetch(invocation, (&self.bucket, &of.object.key, &of.object.etag), offset, len).await
    }
}

async fn fetch(invocation: &Invocation, of: (&str, &str, &str), offset: u64, len: u64) -> Result<Vec<u8>> {
    invocation.aws.store.range_of(of, offset, len).await?.ok_or_else(|| {
        Error::new(
            Code::InvalidAssembly,
            format!("`{}` of bucket `{}` was changed or removed while its assets were published", of.1, of.0),
        )
        .hint("upload each assembly under a key or prefix of its own")
    })
}

async fn zip(invocation: &Invocation, location: &Location, bucket: &str, key: &str) -> Result<Tree<Held>> {
    let object = invocation.aws.store.find(bucket, key).await?;
    let object = object.ok_or_else(|| assembly_not_found(&location.to_string()))?;
    let of = (bucket, key, object.etag.as_str());
    let offset = object.size.saturating_sub(TAIL);
    let mut tail = fetch(invocation, of, offset, TAIL.min(object.size)).await?;
    let directory = locate_end(&tail, object.size)?;
    if !directory.within(tail.len() as u64) {
        tail = fetch(invocation, of, directory.offset, directory.len).await?;
    }
    let index = read_directory(&tail, object.size)?;
    drop(tail);
    // Shared: a hundred thousand entries are held at once.
    let whole = Rc::new(Object { key: key.to_owned(), etag: object.etag.clone() });
    let (mut tree, mut links) = (Tree::default(), Vec::new());
    for entry in index.entries() {
        let (offset, len) = index.entry_range(entry);
        if entry.link {
            // What a link says is a path.
            if entry.size > MAX_LINK {
                return Err(damaged(entry, "is a link with more content than a path has"));
            }
            links.push((entry, (offset, len)));
        } else {
            let held = Held { object: Rc::clone(&whole), offset, len, entry: Some(entry.clone()) };
            tree.file(entry.path.clone(), held);
        }
    }
    links.sort_by_key(|(_, (offset, _))| *offset);
    let ranges: Vec<(u64, u64)> = links.iter().map(|(_, range)| *range).collect();
    let reads = spans(&ranges).into_iter().map(|span| async move {
        let bytes = fetch(invocation, of, span.offset, span.len).await?;
        Ok::<_, Error>((span, bytes))
    });
    let mut reads = stream::iter(reads).buffer_unordered(2);
    while let Some((span, bytes)) = reads.try_next().await? {
        for (entry, (offset, _)) in links.get(span.items).unwrap_or_default() {
            let start = usize::try_from(offset - span.offset).unwrap_or(usize::MAX);
            let content = inflate(entry, bytes.get(start..).unwrap_or_default())?;
            tree.link(entry.path.clone(), content);
        }
    }
    Ok(tree)
}

async fn objects(invocation: &Invocation, bucket: &str, prefix: &str) -> Result<Tree<Held>> {
    let mut tree = Tree::default();
    for object in invocation.aws.store.list(bucket, prefix).await? {
        let path = object.key.get(prefix.len()..).unwrap_or_default();
        // What consoles make of a folder.
        if path.is_empty() || path.ends_with('/') && object.size == 0 {
            continue;
        }
        let path = canonical(path.as_bytes())?;
        let len = object.size;
        let object = Rc::new(Object { key: object.key, etag: object.etag });
        tree.file(path, Held { object, offset: 0, len, entry: None });
        if tree.len() as u64 > MAX_ENTRIES {
            return Err(Error::new(
                Code::AssemblyTooLarge,
                format!("the assembly has more than {MAX_ENTRIES} files"),
            )
            .hint("is this the folder `cdk.out` that `cdk synth` wrote?"));
        }
    }
    Ok(tree)
}
