//! The records of a stack and of the stacks nested in it, on the table: as they are stored, and as they are to be.
//!
//! Each nested stack has a record of its own, `Parent~LogicalId`; a run works on all of them under the one lock, fence
//! and journal of the root. In memory their rows stand together (see [`cdkd_core::state::tree`]); each document is
//! written by itself, conditionally, chained on its own `ETag`. A nested record is written before its parent's, and
//! deleted after it: no record names one that is not there, and what a death leaves is told by the journal, whose
//! changes stay until all documents are written.

use std::collections::{BTreeMap, BTreeSet};

use cdkd_core::name::RecordKey;
use cdkd_core::protocol::journal::Change;
use cdkd_core::state::Record;
use cdkd_core::state::tree::{extract, key_of, merge, new_record, path_of, paths, prune};
use cdkd_core::{Code, Error, Result};

use crate::edge::Invocation;
use crate::settings;
use crate::stack::Loaded;
use crate::store::{Condition, Written};

/// The records as they were read: the root's under the empty path.
#[derive(Clone, Debug, Default)]
pub struct Documents(BTreeMap<String, Loaded>);

impl Documents {
    /// The root's with the rows of those nested in it; `None` if the stack is not on record.
    pub fn merged(&self) -> Option<Record> {
        let nested = self.nested().map(|(path, record)| (path.to_owned(), record.clone())).collect();
        self.0.get("").map(|root| merge(root.record.clone(), &nested))
    }

    /// Those of nested stacks, by path.
    pub fn nested(&self) -> impl Iterator<Item = (&str, &Record)> {
        self.0
            .iter()
            .filter(|(path, _)| !path.is_empty())
            .map(|(path, loaded)| (path.as_str(), &loaded.record))
    }
}

impl Invocation {
    /// Reads the record of a stack and those of the stacks nested in it that its rows lead to: as they stand, with the
    /// changes of a journal, and those that a journal took away whose documents may be there still.
    pub async fn read_tree(&self, root: &RecordKey, changes: &[Change]) -> Result<Documents> {
        let mut documents = Documents::default();
        let mut known: BTreeSet<String> = BTreeSet::from([String::new()]);
        let mut next = vec![String::new()];
        while !next.is_empty() {
            let keys = next.iter().map(|path| key_of(root, path)).collect();
            for (path, (_, loaded)) in next.into_iter().zip(self.load_records(keys).await) {
                if let Some(loaded) = loaded? {
                    documents.0.insert(path, loaded);
                }
            }
            let before = documents.merged().unwrap_or_else(|| Record::new(root));
            let mut after = before.clone();
            for change in changes {
                change.apply(&mut after);
            }
            let found = paths(&before).into_iter().chain(paths(&after)).collect::<BTreeSet<_>>();
            next = found.into_iter().filter(|path| known.insert(path.clone())).collect();
            if next.is_empty() {
                next = self.left_behind(root, changes, &before).await?;
                next.retain(|path| known.insert(path.clone()));
            }
        }
        Ok(documents)
    }

    /// The paths of documents whose rows a journal took away while their parents do not name them any more: a run died
    /// between the write of the parent and their delete.
    async fn left_behind(
        &self,
        root: &RecordKey,
        changes: &[Change],
        record: &Record,
    ) -> Result<Vec<String>> {
        let removed: BTreeSet<&str> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Remove { logical_id } if record.row(logical_id).is_none() => {
                    Some(logical_id.as_str())
                }
                _ => None,
            })
            .collect();
        if removed.is_empty() {
            return Ok(Vec::new());
        }
        let nested = self.nested_on_record(root).await?;
        let paths = nested.iter().filter_map(|key| path_of(root, key));
        Ok(paths.filter(|path| removed.contains(path)).map(str::to_owned).collect())
    }

    /// The records of stacks nested in one, at any depth, whether or not a row leads to them.
    pub async fn nested_on_record(&self, root: &RecordKey) -> Result<Vec<RecordKey>> {
        let settings = &self.settings;
        let folder = format!("{}/{}~", settings.prefix, root.stack);
        let listed = self.aws.store.list(&settings.state_bucket, &folder).await?;
        let keys = listed.iter().filter_map(|object| {
            let place = object.key.strip_prefix(&settings.prefix)?.strip_prefix('/')?;
            let (stack, region) = place.strip_suffix("/state.json")?.split_once('/')?;
            RecordKey::parse(stack, region).ok()
        });
        Ok(keys.filter(|nested| nested.region == root.region).collect())
    }
}

/// Where one of the documents stands in S3.
#[derive(Clone, Debug, Default)]
struct Place {
    etag: Option<String>,
    /// `ETag` of the object at the place of version 1; the next write moves it.
    legacy: Option<String>,
    /// As it stands there.
    stored: Option<Record>,
}

/// The records on the table.
pub struct Desk {
    invocation: Invocation,
    key: RecordKey,
    /// The root's record, with the rows and pending deletes of the whole tree.
    pub record: Record,
    /// What the documents of nested stacks say beside rows and pending deletes, by path.
    nested: BTreeMap<String, Record>,
    places: BTreeMap<String, Place>,
    /// Paths whose documents were deleted here.
    gone: BTreeSet<String>,
}

impl Desk {
    /// Reads the records and puts the changes of the journal on them.
    pub async fn open(invocation: &Invocation, key: &RecordKey, changes: &[Change]) -> Result<Self> {
        let documents = invocation.read_tree(key, changes).await?;
        let mut record = documents.merged().unwrap_or_else(|| Record::new(key));
        for change in changes {
            change.apply(&mut record);
        }
        let mut desk = Self {
            invocation: invocation.clone(),
            key: key.clone(),
            record,
            nested: BTreeMap::new(),
            places: BTreeMap::new(),
            gone: BTreeSet::new(),
        };
        for (path, Loaded { record, etag, legacy }) in documents.0 {
            let stored = Some(record.clone());
            desk.places.insert(path.clone(), Place { etag, legacy, stored });
            if !path.is_empty() {
                desk.nested.insert(path, record);
            }
        }
        desk.sync();
        Ok(desk)
    }

    /// The record of the stack at a path as it stands in S3.
    pub fn stored(&self, path: &str) -> Option<&Record> {
        self.places.get(path)?.stored.as_ref()
    }

    /// All records as they stand in S3, by path.
    pub fn all_stored(&self) -> BTreeMap<String, Record> {
        let stored =
            self.places.iter().filter_map(|(path, place)| Some((path.clone(), place.stored.clone()?)));
        stored.collect()
    }

    /// The key of the record at a path.
    pub fn key_of(&self, path: &str) -> RecordKey {
        key_of(&self.key, path)
    }

    /// The records by path, the root's first, with the rows of the whole tree; those of nested stacks with their own.
    pub fn own(&self) -> impl Iterator<Item = (&str, &Record)> {
        let nested = self.nested.iter().map(|(path, record)| (path.as_str(), record));
        std::iter::once(("", &self.record)).chain(nested)
    }

    /// The same, to be changed in all but rows and pending deletes; those are changed in the root's alone.
    pub fn own_mut(&mut self) -> impl Iterator<Item = (&str, &mut Record)> {
        let nested = self.nested.iter_mut().map(|(path, record)| (path.as_str(), record));
        std::iter::once(("", &mut self.record)).chain(nested)
    }

    /// Brings the documents of nested stacks up to the rows; makes those of new ones.
    pub fn sync(&mut self) {
        for path in paths(&self.record) {
            if let (false, Some(row)) = (self.nested.contains_key(&path), self.record.row(&path)) {
                let made = new_record(&self.key, &path, row.physical_id());
                self.nested.insert(path, made);
            }
        }
        for (path, own) in &mut self.nested {
            *own = extract(&self.record, path, own.clone());
        }
    }

    /// Writes what differs from what is stored: nested records before their parents, and those that are gone deleted
    /// last. Answers whether anything was written.
    ///
    /// # Errors
    /// `StateConflict` if another writer was first.
    pub async fn save(&mut self) -> Result<bool> {
        self.store(false).await
    }

    /// Writes the root's record even if it says the same: its version is raised.
    pub async fn write(&mut self) -> Result<()> {
        self.store(true).await.map(drop)
    }

    async fn store(&mut self, root_too: bool) -> Result<bool> {
        self.sync();
        let reachable: BTreeSet<String> = paths(&self.record).into_iter().collect();
        let mut inner: Vec<String> = self.nested.keys().cloned().collect();
        inner.sort_by_key(|path| std::cmp::Reverse(path.matches('~').count()));
        let mut changed = false;
        for path in &inner {
            let Some(own) = self.nested.get(path) else { continue };
            let differs = match self.stored(path) {
                Some(stored) => !stored.says_the_same(own),
                None => reachable.contains(path),
            };
            if differs {
                let own = self.put(path, own.clone()).await?;
                self.nested.insert(path.clone(), own);
                changed = true;
            }
        }
        let root = extract(&self.record, "", self.record.clone());
        let differs = match self.stored("") {
            Some(stored) => !stored.says_the_same(&root),
            None => !root.says_the_same(&Record::new(&self.key)),
        };
        if differs || root_too {
            let root = self.put("", root).await?;
            // What a write adds stands in memory too.
            self.record.locate(&self.key);
            if let Some(at) = root.last_modified() {
                self.record.touch(at);
            }
            changed = true;
        }
        // A nested stack that was retained keeps its record; one that is empty is gone.
        for path in inner {
            let stays = reachable.contains(&path) || self.record.row(&path).is_some();
            let Some(own) = self.nested.get(&path).filter(|_| !stays) else { continue };
            if own.is_empty() {
                changed |= self.remove(&path).await?;
                self.gone.insert(path.clone());
            }
            self.nested.remove(&path);
            self.places.remove(&path);
        }
        prune(&mut self.record);
        let reachable: BTreeSet<String> = paths(&self.record).into_iter().collect();
        self.nested.retain(|path, _| reachable.contains(path));
        self.places.retain(|path, _| path.is_empty() || reachable.contains(path));
        Ok(changed)
    }

    /// Rewrites the records as they are, so that a write that an earlier holder still has on its way fails.
    pub async fn bump(&mut self) -> Result<()> {
        for (path, record) in self.all_stored() {
            self.put(&path, record).await?;
        }
        Ok(())
    }

    /// Deletes the record, if there is one. Nothing is on it any more, so those of nested stacks go before.
    pub async fn delete(&mut self) -> Result<()> {
        if self.places.keys().any(|path| !path.is_empty()) {
            self.save().await?;
        }
        self.remove("").await.map(drop)
    }

    /// Brings the index of exports up to the records; a failure is a warning.
    pub async fn index(&self) -> Option<String> {
        let mut records: Vec<(RecordKey, Option<&Record>)> =
            self.gone.iter().map(|path| (self.key_of(path), None)).collect();
        let root_is_there = self.places.contains_key("");
        for (path, own) in self.own() {
            let there = !path.is_empty() || root_is_there;
            records.push((self.key_of(path), there.then_some(own)));
        }
        self.invocation.index_records(&self.key, &records).await
    }

    /// One conditional PUT replaces a record, it is never deleted and rewritten (L8).
    async fn put(&mut self, path: &str, mut record: Record) -> Result<Record> {
        // The version is raised by what publishes outputs alone: a record below 9 cannot say which of them are exports.
        let key = self.key_of(path);
        record.locate(&key);
        record.touch(settings::now());
        let settings = &self.invocation.settings;
        let store = &self.invocation.aws.store;
        let at = key.state(&settings.prefix);
        let place = self.places.entry(path.to_owned()).or_default();
        let condition = place.etag.as_deref().map_or(Condition::Absent, Condition::Matches);
        match store.put(&settings.state_bucket, &at, record.to_bytes(), condition).await? {
            Written::Yes(etag) => place.etag = Some(etag),
            Written::Lost | Written::Gone => return Err(conflict(&key)),
        }
        if let Some(etag) = place.legacy.take() {
            // Moved: the new place counts from the write above on.
            store.delete_matching(&settings.state_bucket, &key.legacy_state(&settings.prefix), &etag).await?;
        }
        place.stored = Some(record.clone());
        Ok(record)
    }

    /// Deletes the record at a path, if there is one.
    async fn remove(&mut self, path: &str) -> Result<bool> {
        let Some(place) = self.places.remove(path) else { return Ok(false) };
        let key = self.key_of(path);
        let settings = &self.invocation.settings;
        let store = &self.invocation.aws.store;
        if let Some(etag) = place.etag
            && !store.delete_matching(&settings.state_bucket, &key.state(&settings.prefix), &etag).await?
        {
            return Err(conflict(&key));
        }
        if let Some(etag) = place.legacy {
            store.delete_matching(&settings.state_bucket, &key.legacy_state(&settings.prefix), &etag).await?;
        }
        Ok(true)
    }
}

fn conflict(key: &RecordKey) -> Error {
    Error::new(Code::StateConflict, format!("the record of {key} changed while this run worked on it"))
        .hint("another writer does not keep to the lock; start the execution again")
        .detail("stack", key.stack.as_str())
        .detail("region", key.region.as_str())
}
