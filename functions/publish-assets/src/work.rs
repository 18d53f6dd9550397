//! Writing what is missing: copied inside S3, made in memory from one read for several, or streamed.

use std::io::Write as _;

use cdkd_aws::store::objects::Refusal;
use cdkd_core::assembly::zip::{Method, content_start, damaged, inflate, raw};
use cdkd_core::assets::archive::{self, Writer};
use cdkd_core::assets::spans::{Span, WINDOW, spans};
use cdkd_core::{Code, Error, Result};
use flate2::write::{DeflateDecoder, DeflateEncoder};
use flate2::{Compression, Crc};
use futures::stream::{self, StreamExt as _};
use tokio::sync::Semaphore;

use crate::Publishing;
use crate::plan::{Body, Job};
use crate::sink::Sink;
use crate::source::{AHEAD, Held};

/// Copies under way at once.
const COPIES: usize = 32;
/// Bytes that S3 copies in one request.
const MAX_COPY: u64 = 5 << 30;
/// Reads for several at once, and objects of each being written.
const GROUPS: usize = 2;
const OF_A_GROUP: usize = 16;
/// Objects being streamed at once.
const STREAMS: usize = 2;
/// Kilobytes that all objects made in memory may have at once, and that a stream may have read ahead.
const MEMORY: u32 = 32 << 10;
/// Bytes of a read of a stream.
const READ: u64 = 4 << 20;
/// Bytes between which other work gets its turn. Inflated, they are a thousand times as many at most.
const STEP: usize = 8 << 10;

/// Why a stream ended early.
enum Stop {
    /// Time is short.
    Late,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Publishing<'a> {
    /// Writes all of them, until time is short or one fails. Those that are under way come to their end.
    pub(crate) async fn publish(&self, jobs: Vec<Job<'a>>) {
        let (mut copies, mut small, mut large) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            match (object(&job.body), extent(&job.body)) {
                (Some(held), _) if held.len <= MAX_COPY => copies.push((job, held)),
                (_, Some(extent)) if extent.1 <= WINDOW && job.most <= WINDOW => small.push((extent, job)),
                _ => large.push(job),
            }
        }
        let copies = copies.iter().map(|(job, held)| self.copy(job, held));
        stream::iter(copies).buffer_unordered(COPIES).collect::<()>().await;

        small.sort_by_key(|(extent, _)| *extent);
        let (extents, small): (Vec<_>, Vec<_>) = small.into_iter().unzip();
        let memory = Semaphore::new(MEMORY as usize);
        let groups = spans(&extents);
        let groups = groups
            .iter()
            .map(|span| self.together(span, small.get(span.items.clone()).unwrap_or_default(), &memory));
        stream::iter(groups).buffer_unordered(GROUPS).collect::<()>().await;

        let streams = large.iter().map(|job| self.alone(job));
        stream::iter(streams).buffer_unordered(STREAMS).collect::<()>().await;
    }

    fn end(&self, job: &Job<'a>, outcome: Result<(), Refusal>) {
        match outcome {
            Ok(()) => self.published.set(self.published.get() + 1),
            Err(refusal) => self.failed(self.explain(job.file, refusal)),
        }
    }

    /// A file of a prefix: its bytes never come here.
    async fn copy(&self, job: &Job<'a>, held: &Held) {
        if self.is_over(job) {
            return;
        }
        let from = (self.source.bucket.as_str(), held.object.key.as_str(), held.object.etag.as_str());
        let to = (job.file.bucket.as_str(), job.file.key.as_str());
        self.end(job, self.invocation.aws.store.copy(from, to, &job.kind).await);
    }

    /// Several that lie side by side in the zip.
    async fn together(&self, span: &Span, jobs: &[Job<'a>], memory: &Semaphore) {
        let Some((first, held)) = jobs.first().and_then(|job| Some((job, sources(&job.body).next()?))) else {
            return;
        };
        if self.is_over(first) {
            return;
        }
        let bytes = match self.source.fetch(self.invocation, held, span.offset, span.len).await {
            Ok(bytes) => bytes,
            Err(error) => return self.failed(error),
        };
        let bytes = &bytes;
        let writes = jobs.iter().map(|job| async move {
            if self.is_over(job) {
                return;
            }
            // Never closed.
            let Ok(_kept) = memory.acquire_many(kilobytes(job.most)).await else { return };
            match make(job, span, bytes) {
                Ok(body) => {
                    let (bucket, key) = (&job.file.bucket, &job.file.key);
                    self.end(job, self.invocation.aws.store.write(bucket, key, &job.kind, body).await);
                }
                Err(error) => self.failed(error.detail("asset", job.file.name.as_str())),
            }
        });
        stream::iter(writes).buffer_unordered(OF_A_GROUP).collect::<()>().await;
    }

    /// One that is read, made and written at the same time.
    async fn alone(&self, job: &Job<'a>) {
        if self.is_over(job) {
            return;
        }
        let to = (job.file.bucket.as_str(), job.file.key.as_str());
        let mut sink = Sink::new(&self.invocation.aws.store, to, &job.kind);
        match self.pour(job, &mut sink).await {
            Ok(()) => self.end(job, sink.finish().await),
            Err(stop) => {
                sink.give_up().await;
                match stop {
                    Stop::Late => self.ran_out_on(job),
                    Stop::Failed(error) => self.failed(error.detail("asset", job.file.name.as_str())),
                }
            }
        }
    }

    async fn pour(&self, job: &Job<'a>, sink: &mut Sink<'_>) -> Result<(), Stop> {
        let files: Vec<&Held> = sources(&job.body).collect();
        let mut archive = Writer::default();
        let ahead = Semaphore::new(MEMORY as usize);
        let pulls = pulls(&files);
        let reads = pulls.iter().map(|pull| {
            let ahead = &ahead;
            async move {
                // In the order of the stream: what is needed first has its place first.
                let place = ahead.acquire_many(kilobytes(pull.len)).await;
                let bytes = self.source.fetch(self.invocation, pull.of, pull.offset, pull.len).await?;
                Ok::<_, Error>((pull, bytes, place))
            }
        });
        let mut reads = stream::iter(reads).buffered(AHEAD);
        let mut open: Option<Coder> = None;
        let refused = |refusal| Stop::Failed(self.explain(job.file, refusal));
        while let Some(read) = reads.next().await {
            let (pull, bytes, _place) = read?;
            if self.is_late() {
                return Err(Stop::Late);
            }
            for n in pull.items.clone() {
                let Some(held) = files.get(n).copied() else { continue };
                let start = usize::try_from(held.offset.saturating_sub(pull.offset)).unwrap_or(usize::MAX);
                let mut content = bytes.get(if pull.first { start } else { 0 }..).unwrap_or_default();
                if pull.first {
                    let mut coder = Coder::new(&job.body, held);
                    if let Some(entry) = &held.entry {
                        let start = usize::try_from(content_start(entry, content)?).unwrap_or(usize::MAX);
                        content = content.get(start..).unwrap_or_default();
                    }
                    if let Body::Archive(items) = &job.body
                        && let Some(item) = items.get(n)
                    {
                        let (header, entry) = archive.header(&item.name, item.mode, item.content)?;
                        sink.write(&header).await.map_err(refused)?;
                        coder.entry = Some(entry);
                    }
                    open = Some(coder);
                }
                let Some(coder) = &mut open else { continue };
                for step in coder.own(content).chunks(STEP) {
                    coder.push(held, step)?;
                    sink.write(&coder.out).await.map_err(refused)?;
                    coder.out.clear();
                    tokio::task::yield_now().await;
                }
                if pull.last
                    && let Some(coder) = open.take()
                {
                    let (rest, ended) = coder.finish(held)?;
                    sink.write(&rest).await.map_err(refused)?;
                    if let Some(Ended { entry, compressed, crc32 }) = ended {
                        sink.write(&archive.trailer(&entry, compressed, crc32)).await.map_err(refused)?;
                    }
                }
            }
        }
        if matches!(job.body, Body::Archive(_)) {
            sink.write(&archive.finish()).await.map_err(refused)?;
        }
        Ok(())
    }
}

/// The files that a body is made of.
fn sources<'b, 'a>(body: &'b Body<'a>) -> Box<dyn Iterator<Item = &'a Held> + 'b> {
    match body {
        Body::File(held) => Box::new(std::iter::once(*held)),
        Body::Archive(items) => Box::new(items.iter().map(|item| item.source)),
    }
}

/// The object below a prefix that a body is a copy of.
fn object<'a>(body: &Body<'a>) -> Option<&'a Held> {
    match body {
        Body::File(held) if held.entry.is_none() => Some(held),
        _ => None,
    }
}

/// Where in the zip all of a body lies: offset and length. `None`: not in a zip.
fn extent(body: &Body<'_>) -> Option<(u64, u64)> {
    let (mut start, mut end) = (u64::MAX, 0);
    for held in sources(body) {
        held.entry.as_ref()?;
        start = start.min(held.offset);
        end = end.max(held.offset + held.len);
    }
    Some((start, end.checked_sub(start)?))
}

/// The object, from bytes of the zip that hold all of it.
fn make(job: &Job<'_>, span: &Span, bytes: &[u8]) -> Result<Vec<u8>> {
    let from = |held: &Held| {
        let start = usize::try_from(held.offset.saturating_sub(span.offset)).unwrap_or(usize::MAX);
        bytes.get(start..).unwrap_or_default()
    };
    match &job.body {
        Body::File(held) => match &held.entry {
            Some(entry) => inflate(entry, from(held)),
            None => Ok(from(held).to_vec()),
        },
        Body::Archive(items) => {
            let mut archive = Writer::default();
            let mut body = Vec::with_capacity(usize::try_from(job.most).unwrap_or(0));
            for item in items {
                let (header, entry) = archive.header(&item.name, item.mode, item.content)?;
                body.extend_from_slice(&header);
                if let Some(of_zip) = &item.source.entry {
                    body.extend_from_slice(raw(of_zip, from(item.source))?);
                }
                body.extend_from_slice(&archive.trailer(&entry, 0, 0));
            }
            body.extend_from_slice(&archive.finish());
            Ok(body)
        }
    }
}

/// One read of a stream.
struct Pull<'a> {
    of: &'a Held,
    offset: u64,
    len: u64,
    /// Which files it is for: several, all of each, or a piece of one.
    items: std::ops::Range<usize>,
    /// It holds the beginning of its files,
    first: bool,
    /// their end.
    last: bool,
}

/// The reads for these files, in their order.
fn pulls<'a>(files: &[&'a Held]) -> Vec<Pull<'a>> {
    // Objects of a prefix have no neighbours.
    if files.iter().any(|held| held.entry.is_none()) {
        return files.iter().enumerate().flat_map(|(n, held)| piecemeal(n, held)).collect();
    }
    let ranges: Vec<(u64, u64)> = files.iter().map(|held| (held.offset, held.len)).collect();
    let mut pulls = Vec::new();
    for span in spans(&ranges) {
        let Some(of) = files.get(span.items.start).copied() else { continue };
        if span.len > WINDOW {
            pulls.extend(piecemeal(span.items.start, of));
        } else {
            let (offset, len) = (span.offset, span.len);
            pulls.push(Pull { of, offset, len, items: span.items, first: true, last: true });
        }
    }
    pulls
}

/// The reads for one file.
fn piecemeal(n: usize, of: &Held) -> Vec<Pull<'_>> {
    let end = of.offset + of.len;
    let pieces = of.len.div_ceil(READ).max(1);
    let piece = |number: u64| {
        let offset = of.offset + number * READ;
        let (first, last) = (number == 0, number + 1 == pieces);
        Pull { of, offset, len: READ.min(end - offset), items: n..n + 1, first, last }
    };
    (0..pieces).map(piece).collect()
}

/// From the bytes of a file in the assembly to those in the object.
struct Coder {
    mode: Mode,
    /// Bytes of the source that are still to come.
    left: u64,
    /// Of the file.
    crc: Crc,
    size: u64,
    /// Bytes that went out.
    compressed: u64,
    /// What is ready to go out.
    out: Vec<u8>,
    /// Its entry in the archive, if it is part of one.
    entry: Option<archive::Entry>,
}

enum Mode {
    /// As it is in the source.
    Copy,
    Inflate(DeflateDecoder<Vec<u8>>),
    Deflate(DeflateEncoder<Vec<u8>>),
}

/// What the archive has to know of a file that is through.
struct Ended {
    entry: archive::Entry,
    compressed: u64,
    crc32: u32,
}

impl Coder {
    fn new(body: &Body<'_>, held: &Held) -> Self {
        let mode = match (body, &held.entry) {
            (Body::File(_), Some(entry)) if entry.method == Method::Deflated => {
                Mode::Inflate(DeflateDecoder::new(Vec::new()))
            }
            (Body::Archive(_), None) => {
                Mode::Deflate(DeflateEncoder::new(Vec::new(), Compression::default()))
            }
            _ => Mode::Copy,
        };
        let left = held.entry.as_ref().map_or(held.len, |entry| entry.compressed_size);
        Self { mode, left, crc: Crc::new(), size: 0, compressed: 0, out: Vec::new(), entry: None }
    }

    /// What of these bytes is the file's.
    fn own<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let own = usize::try_from(self.left).map_or(bytes, |left| bytes.get(..left).unwrap_or(bytes));
        self.left -= own.len() as u64;
        own
    }

    fn push(&mut self, held: &Held, bytes: &[u8]) -> Result<()> {
        match &mut self.mode {
            Mode::Copy => {
                self.out.extend_from_slice(bytes);
                // Of a raw copy the sum is that of other bytes.
                self.crc.update(bytes);
                self.size += bytes.len() as u64;
            }
            Mode::Inflate(decoder) => {
                decoder.write_all(bytes).map_err(|_| broken(held, "does not inflate"))?;
                self.out.append(decoder.get_mut());
                self.crc.update(&self.out);
                self.size += self.out.len() as u64;
                if self.size > held.size() {
                    return Err(broken(held, "inflates to more than it states"));
                }
            }
            Mode::Deflate(encoder) => {
                self.crc.update(bytes);
                self.size += bytes.len() as u64;
                // Into memory: it does not fail.
                encoder.write_all(bytes).map_err(|_| broken(held, "cannot be compressed"))?;
                self.out.append(encoder.get_mut());
            }
        }
        self.compressed += self.out.len() as u64;
        Ok(())
    }

    /// The last bytes; of a file in an archive, its entry with its compressed size and CRC-32.
    fn finish(mut self, held: &Held) -> Result<(Vec<u8>, Option<Ended>)> {
        let raw_copy = self.entry.is_some() && matches!(self.mode, Mode::Copy);
        let rest = match self.mode {
            Mode::Copy => Vec::new(),
            Mode::Inflate(decoder) => decoder.finish().map_err(|_| broken(held, "does not inflate"))?,
            Mode::Deflate(encoder) => encoder.finish().map_err(|_| broken(held, "cannot be compressed"))?,
        };
        self.compressed += rest.len() as u64;
        if held.entry.is_some() && self.entry.is_none() {
            self.crc.update(&rest);
            self.size += rest.len() as u64;
        }
        let crc32 = self.crc.sum();
        let fits = raw_copy || self.size == held.size();
        if self.left > 0 || !fits {
            return Err(broken(held, "is cut off"));
        }
        if let Some(entry) = held.entry.as_ref().filter(|_| !raw_copy)
            && entry.crc != crc32
        {
            return Err(broken(held, "does not match its checksum"));
        }
        let compressed = self.compressed;
        Ok((rest, self.entry.map(|entry| Ended { entry, compressed, crc32 })))
    }
}

fn broken(held: &Held, why: &str) -> Error {
    match &held.entry {
        Some(entry) => damaged(entry, why),
        None => Error::new(Code::InvalidAssembly, format!("`{}` in the assembly {why}", held.object.key))
            .hint("upload the assembly again"),
    }
}

/// What a semaphore of kilobytes is asked for; never more than it has.
fn kilobytes(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX).clamp(1, MEMORY)
}
