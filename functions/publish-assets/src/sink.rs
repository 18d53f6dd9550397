//! An object that grows: in parts once it is larger than one.

use cdkd_aws::store::Store;
use cdkd_aws::store::objects::{Kind, Part, Parts, Refusal};
use cdkd_core::{Code, Error};
use tokio::task::JoinSet;

/// Bytes of a part; S3 takes 5 MB and more. All are of one size, which bounds what is in memory.
pub(crate) const PART: usize = 8 << 20;
/// As many parts as S3 takes.
const MAX_PARTS: u64 = 10_000;
/// Bytes of the largest object.
pub(crate) const MAX_OBJECT: u64 = PART as u64 * MAX_PARTS;
/// How many parts are on their way while the next one is filled.
const ON_THEIR_WAY: usize = 2;

/// Takes bytes and writes them as an object, which is there once [`finish`](Sink::finish) says so.
pub(crate) struct Sink<'a> {
    store: &'a Store,
    bucket: &'a str,
    key: &'a str,
    kind: &'a Kind,
    buffer: Vec<u8>,
    parts: Option<Parts>,
    on_their_way: JoinSet<Result<Part, Refusal>>,
    done: Vec<Part>,
    count: i32,
    size: u64,
}

impl<'a> Sink<'a> {
    pub fn new(store: &'a Store, (bucket, key): (&'a str, &'a str), kind: &'a Kind) -> Self {
        Self {
            store,
            bucket,
            key,
            kind,
            buffer: Vec::new(),
            parts: None,
            on_their_way: JoinSet::new(),
            done: Vec::new(),
            count: 0,
            size: 0,
        }
    }

    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Refusal> {
        self.size += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PART - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == PART {
                self.ship().await?;
            }
        }
        Ok(())
    }

    /// Makes it an object. One that S3 has made already, whose answer was lost, is known by what the skip rule knows it by.
    pub async fn finish(mut self) -> Result<(), Refusal> {
        if self.parts.is_none() {
            return self.store.write(self.bucket, self.key, self.kind, self.buffer).await;
        }
        let Err(refusal) = self.complete().await else { return Ok(()) };
        let was_made = match &refusal {
            Refusal::Other(_) => {
                let found = self.store.look(self.bucket, self.key).await;
                found.ok().flatten().is_some_and(|it| it.size == self.size && it.source == self.kind.source)
            }
            _ => false,
        };
        self.give_up().await;
        if was_made { Ok(()) } else { Err(refusal) }
    }

    /// Leaves nothing behind.
    pub async fn give_up(mut self) {
        // A part that arrives after the end would stay.
        self.on_their_way.shutdown().await;
        if let Some(parts) = &self.parts {
            parts.give_up().await;
        }
    }

    async fn complete(&mut self) -> Result<(), Refusal> {
        if !self.buffer.is_empty() {
            self.ship().await?;
        }
        while !self.on_their_way.is_empty() {
            self.take().await?;
        }
        let done = std::mem::take(&mut self.done);
        match &self.parts {
            Some(parts) => parts.complete(done).await,
            None => Ok(()),
        }
    }

    async fn ship(&mut self) -> Result<(), Refusal> {
        if self.on_their_way.len() >= ON_THEIR_WAY {
            self.take().await?;
        }
        if self.parts.is_none() {
            self.parts = Some(self.store.parts(self.bucket, self.key, self.kind).await?);
        }
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(PART));
        if let Some(parts) = &self.parts {
            self.count += 1;
            self.on_their_way.spawn(parts.part(self.count, full));
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<(), Refusal> {
        match self.on_their_way.join_next().await {
            Some(Ok(part)) => self.done.push(part?),
            Some(Err(error)) => {
                let what = format!("a part of `{}` was lost: {error}", self.key);
                return Err(Refusal::Other(Error::new(Code::InternalError, what)));
            }
            None => {}
        }
        Ok(())
    }
}
