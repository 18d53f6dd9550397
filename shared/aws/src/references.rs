//! References between stacks, carried out: the reads and writes that `cdkd_core::references` asks for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use cdkd_core::name::{RecordKey, Region};
use cdkd_core::protocol::handshake::Source;
use cdkd_core::protocol::step::{Effect, Event, Seen};
use cdkd_core::references::forecast::{Ahead, Forecast};
use cdkd_core::references::handshake::{self, GivenUp};
use cdkd_core::references::imports::Reads;
use cdkd_core::references::index::{self, Index};
use cdkd_core::references::resolve::{self, Found, Resolver};
use cdkd_core::references::scan::{self, Scan};
use cdkd_core::state::Record;
use cdkd_core::state::lock::Lock;
use cdkd_core::template::{self, Imports, OutputRead};
use cdkd_core::value::{Node, Piece, Reason, Text};
use cdkd_core::{Code, Error, Result};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use crate::edge::Invocation;
use crate::estate::Estate;
use crate::protocol::{LockAndJournal, World, unknown};
use crate::settings;
use crate::stack::{Loaded, Run};
use crate::store::Changed;

/// What a stack reads of others, with the values and where they came from.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    exports: IndexMap<String, Found>,
    outputs: IndexMap<OutputRead, Found>,
    /// The `ETag` of each producer's record that a value came from.
    etags: BTreeMap<RecordKey, String>,
    /// Known only once that stack of this run is applied (rule E37).
    later_exports: BTreeMap<String, RecordKey>,
    later_outputs: IndexMap<OutputRead, RecordKey>,
}

impl Imports for Imported {
    fn import(&self, export: &str) -> Result<Node> {
        match self.exports.get(export) {
            Some(found) => Ok(found.node()),
            None => match self.later_exports.get(export) {
                Some(producer) => Ok(after(producer)),
                None => Err(Error::new(Code::InternalError, format!("export `{export}` was not looked up"))),
            },
        }
    }

    fn output(&self, read: &OutputRead) -> Result<Node> {
        match self.outputs.get(read) {
            Some(found) => Ok(found.node()),
            None => match self.later_outputs.get(read) {
                Some(producer) => Ok(after(producer)),
                None => Err(Error::new(Code::InternalError, format!("the {read} was not looked up"))),
            },
        }
    }
}

/// That it is text is known: outputs are strings (rules T10, E17).
fn after(producer: &RecordKey) -> Node {
    let mut text = Text::default();
    text.push(Piece::Unknown(Reason::Other(format!("known after the deploy of {producer}"))));
    Node::Text(text)
}

impl Imported {
    pub fn is_empty(&self) -> bool {
        self.exports.is_empty()
            && self.outputs.is_empty()
            && self.later_exports.is_empty()
            && self.later_outputs.is_empty()
    }

    /// The producers of what is imported, each with the values as they were read.
    pub fn sources(&self) -> Vec<Source> {
        let mut sources: BTreeMap<&RecordKey, Source> = BTreeMap::new();
        for (name, found) in &self.exports {
            let key = &found.producer;
            let source = sources.entry(key).or_insert_with(|| Source {
                key: key.clone(),
                etag: self.etags.get(key).cloned(),
                exports: Vec::new(),
            });
            source.exports.push((name.clone(), found.value.clone()));
        }
        sources.into_values().collect()
    }

    /// What the record of one of the stacks of a tree is to say of them: of those that its template reads.
    pub fn of(&self, read: &template::Reads) -> Reads {
        let exports = self.exports.iter().filter(|(name, _)| read.exports.contains_key(*name));
        Reads {
            imports: exports.map(|(name, found)| found.import(name)).collect(),
            output_reads: self
                .outputs
                .keys()
                .filter(|output| read.outputs.contains_key(*output))
                .map(|read| cdkd_core::state::OutputRead {
                    source_stack: read.source.stack.to_string(),
                    source_region: read.source.region.to_string(),
                    output_name: read.output.clone(),
                })
                .collect(),
            ..Reads::default()
        }
    }

    /// As the plan carries them: stored form.
    pub fn to_document(&self) -> Value {
        let found = |found: &Found| {
            json!({
                "stack": found.producer.stack.as_str(),
                "region": found.producer.region.as_str(),
                "value": found.value,
            })
        };
        let exports: Map<String, Value> =
            self.exports.iter().map(|(name, one)| (name.clone(), found(one))).collect();
        let outputs: Vec<Value> = self
            .outputs
            .iter()
            .map(|(read, one)| json!({ "output": read.output, "found": found(one) }))
            .collect();
        json!({ "exports": exports, "outputs": outputs })
    }

    /// Reads [`Imported::to_document`] back; absent is none.
    pub fn from_document(document: &Value) -> Result<Self> {
        let bad = || Error::new(Code::InvalidState, "the imports in a plan do not have the documented form");
        let found = |value: &Value| -> Result<Found> {
            let text = |field: &str| value[field].as_str().ok_or_else(bad);
            Ok(Found {
                producer: RecordKey::parse(text("stack")?, text("region")?)?,
                value: value["value"].clone(),
                patch: false,
            })
        };
        let mut imported = Self::default();
        for (name, value) in document["exports"].as_object().into_iter().flatten() {
            imported.exports.insert(name.clone(), found(value)?);
        }
        for value in document["outputs"].as_array().into_iter().flatten() {
            let one = found(&value["found"])?;
            let output = value["output"].as_str().ok_or_else(bad)?.to_owned();
            imported.outputs.insert(OutputRead { source: one.producer.clone(), output }, one);
        }
        Ok(imported)
    }
}

/// The estate as a handshake looks at it: all that is read is read after the intent was written.
pub struct Lookout<'a> {
    view: View<'a>,
    /// Scans read the same records: one after the other, each is read once.
    turn: tokio::sync::Mutex<()>,
}

impl<'a> Lookout<'a> {
    pub fn new(invocation: &'a Invocation) -> Self {
        Self { view: View::new(invocation), turn: tokio::sync::Mutex::default() }
    }
}

impl World for Lookout<'_> {
    async fn carry_out(&self, effect: Effect) -> Result<Event> {
        let invocation = self.view.invocation;
        Ok(match effect {
            Effect::ReadLock(ref key) => {
                let ground = LockAndJournal { invocation, key };
                return ground.carry_out(effect.clone()).await;
            }
            Effect::ReadRecord { key, unless } => Event::Record(invocation.look_at(&key, unless).await?),
            Effect::CheckOwners { own, names, given_up } => {
                let _turn = self.turn.lock().await;
                self.view.check_claims(&own, &names, &given_up).await?;
                Event::Done
            }
            Effect::Scan { producer, exports } => {
                let _turn = self.turn.lock().await;
                Event::Scanned(self.view.consumers(&producer, exports.as_deref()).await?)
            }
            other => return Err(unknown(&other)),
        })
    }
}

/// By the path of the stack, the exports that an earlier run had withdrawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundWithdrawn(BTreeMap<String, Vec<String>>);

impl FoundWithdrawn {
    pub fn of(&self, path: &str) -> &[String] {
        self.0.get(path).map(Vec::as_slice).unwrap_or_default()
    }
}

/// A record as it was read, if there is one.
type Read = Rc<Result<Option<Loaded>>>;

/// Those that are there, or cannot be read.
fn there(
    records: &[(RecordKey, Read)],
) -> impl Iterator<Item = (&RecordKey, std::result::Result<&Record, &Error>)> {
    records.iter().filter_map(|(key, read)| match read.as_ref() {
        Ok(Some(loaded)) => Some((key, Ok(&loaded.record))),
        Ok(None) => None,
        Err(error) => Some((key, Err(error))),
    })
}

/// What one step of a run reads of the estate, each document once. For a decision that has to see what others wrote after
/// an intent of one's own, take a fresh one.
pub struct View<'a> {
    invocation: &'a Invocation,
    indexes: RefCell<BTreeMap<Region, Option<Index>>>,
    records: RefCell<BTreeMap<RecordKey, Read>>,
    estate: OnceCell<Estate>,
    locks: OnceCell<Vec<(RecordKey, Result<Option<Lock>>)>>,
}

impl<'a> View<'a> {
    pub fn new(invocation: &'a Invocation) -> Self {
        Self {
            invocation,
            indexes: RefCell::default(),
            records: RefCell::default(),
            estate: OnceCell::new(),
            locks: OnceCell::new(),
        }
    }

    /// Looks up what a template reads: what stacks of the run planned before will publish; else by the index and one
    /// record per distinct producer; else by the records of the region (rules E19, E32, E33, E37).
    ///
    /// `given_up` are exports that stacks of the run take away (rule E29).
    pub async fn import(
        &self,
        own: &RecordKey,
        reads: &template::Reads,
        forecast: &Forecast,
        given_up: &GivenUp,
    ) -> Result<Imported> {
        let mut imported = Imported::default();
        let mut recorded = IndexMap::new();
        for (name, places) in &reads.exports {
            match forecast.export(own, name) {
                Some(Ahead::Value(found)) => {
                    imported.exports.insert(name.clone(), found);
                }
                Some(Ahead::After(producer)) => {
                    imported.later_exports.insert(name.clone(), producer);
                }
                None => {
                    recorded.insert(name.as_str(), places);
                }
            }
        }
        if !recorded.is_empty() {
            self.import_exports(own, &recorded, given_up, &mut imported).await?;
        }
        let mut outputs = Vec::new();
        for read in reads.outputs.keys() {
            match forecast.output(own, &read.source, &read.output)? {
                Some(Ahead::Value(found)) => {
                    imported.outputs.insert(read.clone(), found);
                }
                Some(Ahead::After(producer)) => {
                    imported.later_outputs.insert(read.clone(), producer);
                }
                None => outputs.push(read),
            }
        }
        self.load(outputs.iter().map(|read| read.source.clone()).collect()).await;
        for read in outputs {
            let loaded = self.record(&read.source).await;
            let record = loaded.as_ref().as_ref().map_err(Clone::clone)?;
            let record = record.as_ref().map(|loaded| &loaded.record);
            let found = resolve::output(own, &read.source, &read.output, record)?
                .ok_or_else(|| resolve::no_such_stack(&read.source, &read.output))?;
            imported.outputs.insert(read.clone(), found);
        }
        Ok(imported)
    }

    async fn import_exports(
        &self,
        own: &RecordKey,
        names: &IndexMap<&str, &Vec<cdkd_core::error::Place>>,
        given_up: &GivenUp,
        imported: &mut Imported,
    ) -> Result<()> {
        let index = self.index(&own.region).await?;
        let mut resolver = Resolver::new(own, names.keys().copied(), index.as_ref(), given_up.clone());
        let producers = resolver.producers();
        self.load(producers.iter().cloned().collect()).await;
        for key in &producers {
            let loaded = self.record(key).await;
            let loaded = loaded.as_ref().as_ref().map_err(Clone::clone)?;
            resolver.verify(key, loaded.as_ref().map(|loaded| &loaded.record));
            if let Some(etag) = loaded.as_ref().and_then(|loaded| loaded.etag.clone()) {
                imported.etags.insert(key.clone(), etag);
            }
        }
        if !resolver.misses().is_empty() {
            self.scan_exports(own, index.is_some(), &mut resolver).await?;
        }
        if let Some(name) = resolver.absent().first() {
            let place = names.get(*name).and_then(|places| places.first());
            let error = resolver.not_found(name);
            return Err(match place {
                Some(place) => error.place(place),
                None => error,
            });
        }
        for (name, found) in resolver.all_found() {
            imported.exports.insert(name.to_owned(), found.clone());
        }
        Ok(())
    }

    /// Looks for misses in the records of the region, and patches the index or makes it anew.
    async fn scan_exports(&self, own: &RecordKey, indexed: bool, resolver: &mut Resolver) -> Result<()> {
        let records = self.records_of(Some(&own.region)).await?;
        resolver.scan(there(&records))?;
        let patches: Vec<(String, index::Entry)> = resolver
            .all_found()
            .filter(|(_, found)| found.patch)
            .map(|(name, found)| {
                let entry =
                    index::Entry { value: found.value.clone(), producer: found.producer.clone(), etag: None };
                (name.to_owned(), entry)
            })
            .collect();
        let readable = || there(&records).filter_map(|(key, record)| Some((key, record.ok()?, None)));
        let changed = self
            .invocation
            .change_index(&own.region, async |index| {
                if !indexed {
                    *index = Index::rebuild(&own.region, readable());
                }
                for (name, entry) in &patches {
                    index.patch(name, entry);
                }
                Ok(())
            })
            .await;
        // The index is a hint: an import does not fail for it.
        if let Err(error) = changed
            && error.code() == Code::UnsupportedIndexVersion
        {
            return Err(error);
        }
        Ok(())
    }

    async fn index(&self, region: &Region) -> Result<Option<Index>> {
        if let Some(index) = self.indexes.borrow().get(region) {
            return Ok(index.clone());
        }
        let index = self.invocation.read_index(region).await?;
        self.indexes.borrow_mut().insert(region.clone(), index.clone());
        Ok(index)
    }

    /// Reads what of these was not read yet, many at a time.
    async fn load(&self, keys: Vec<RecordKey>) {
        let missing: BTreeSet<RecordKey> =
            keys.into_iter().filter(|key| !self.records.borrow().contains_key(key)).collect();
        let read = self.invocation.load_records(missing.into_iter().collect()).await;
        self.records.borrow_mut().extend(read.into_iter().map(|(key, read)| (key, Rc::new(read))));
    }

    async fn record(&self, key: &RecordKey) -> Read {
        if let Some(known) = self.records.borrow().get(key) {
            return Rc::clone(known);
        }
        let read = Rc::new(self.invocation.read_record(key).await);
        self.records.borrow_mut().insert(key.clone(), Rc::clone(&read));
        read
    }

    async fn estate(&self) -> Result<&Estate> {
        self.estate.get_or_try_init(|| self.invocation.estate()).await
    }

    /// All records, or those of a region, in the order of their keys.
    async fn records_of(&self, region: Option<&Region>) -> Result<Vec<(RecordKey, Read)>> {
        let listed = self.estate().await?.records.iter().map(|(key, _)| key);
        let keys: Vec<RecordKey> =
            listed.filter(|key| region.is_none_or(|region| key.region == *region)).cloned().collect();
        self.load(keys.clone()).await;
        let known = self.records.borrow();
        Ok(keys
            .into_iter()
            .filter_map(|key| {
                let read = known.get(&key).map(Rc::clone)?;
                Some((key, read))
            })
            .collect())
    }

    /// Scans the records of the whole estate for consumers of a stack, or of some of its exports (rules E21, E35).
    pub async fn consumers(&self, producer: &RecordKey, exports: Option<&[String]>) -> Result<Scan> {
        let estate = self.estate().await?;
        // Locks before records: another tool that has given its lock back has written its record before.
        let locks = self
            .locks
            .get_or_init(|| async {
                let reads = estate
                    .locks
                    .iter()
                    .map(|key| async move { (key.clone(), self.invocation.read_lock(key).await) });
                futures::future::join_all(reads).await
            })
            .await;
        let held: Vec<_> = locks
            .iter()
            .filter_map(|(key, lock)| match lock {
                Ok(None) => None,
                Ok(Some(lock)) => Some((key, Ok(lock))),
                Err(error) => Some((key, Err(error))),
            })
            .collect();
        scan::look_at_locks(producer, held, settings::now())?;
        let records = self.records_of(None).await?;
        scan::consumers(producer, exports, there(&records))
    }

    /// Looks whether another stack of the region owns one of the names (rule E4).
    pub async fn check_claims(&self, own: &RecordKey, names: &[String], given_up: &GivenUp) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let records = self.records_of(Some(&own.region)).await?;
        let readable: Vec<(&RecordKey, &Record)> = there(&records)
            .map(|(key, record)| Ok((key, record.map_err(Clone::clone)?)))
            .collect::<Result<_>>()?;
        handshake::conflicts(own, names, given_up, readable)
    }
}

impl Invocation {
    /// The index of a region; `None` if there is none or it does not parse.
    pub async fn read_index(&self, region: &Region) -> Result<Option<Index>> {
        let place = index::place(&self.settings.prefix, region);
        let Some(object) = self.aws.store.get(&self.settings.state_bucket, &place).await? else {
            return Ok(None);
        };
        Ok(match Index::parse(&object.body, region)? {
            index::Found::Index(index) => Some(index),
            index::Found::Corrupt => None,
        })
    }

    /// Changes the index of a region under optimistic locking; writes nothing if it says the same (rule E6).
    ///
    /// What a change reads of records it reads inside, after the index: then it cannot put an older record over what a
    /// newer one has written meanwhile.
    pub async fn change_index(
        &self,
        region: &Region,
        mut change: impl AsyncFnMut(&mut Index) -> Result<()>,
    ) -> Result<bool> {
        let place = index::place(&self.settings.prefix, region);
        self.change_derived(&place, async |body| {
            let found = match body.map(|body| Index::parse(body, region)).transpose()? {
                Some(index::Found::Index(index)) => Some(index),
                Some(index::Found::Corrupt) | None => None,
            };
            let mut index = found.clone().unwrap_or_else(|| Index::new(region));
            change(&mut index).await?;
            let same = match &found {
                Some(found) => found.says_the_same(&index),
                // Nothing to say makes no document; a corrupt one is replaced.
                None => body.is_none() && index.names().next().is_none(),
            };
            if same {
                return Ok(None);
            }
            index.touch(settings::now());
            Ok(Some(index.to_bytes()))
        })
        .await
    }

    /// Brings the index up to the records of a stack and of those nested in it, or drops those that are gone (`None`); a
    /// failure is a warning, since the index mends itself (seed, "Concurrency").
    pub async fn index_records(
        &self,
        root: &RecordKey,
        records: &[(RecordKey, Option<&Record>)],
    ) -> Option<String> {
        let changed = self
            .change_index(&root.region, async |index| {
                // What one gives up another may have taken: those that are gone go first.
                for (key, record) in records {
                    match record {
                        Some(_) => {}
                        None => index.remove_for_stack(key),
                    }
                }
                for (key, record) in records {
                    if let Some(record) = record {
                        index.update_for_stack(key, record, None);
                    }
                }
                Ok(())
            })
            .await;
        changed
            .err()
            .map(|error| format!("the index of exports was not brought up to {root}: {}", error.message()))
    }

    /// A record as it stands now, if it is not what was read under an `ETag`.
    async fn look_at(&self, key: &RecordKey, unless: Option<String>) -> Result<Seen> {
        let place = key.state(&self.settings.prefix);
        let bucket = &self.settings.state_bucket;
        let changed = match unless {
            Some(etag) => self.aws.store.get_if_changed(bucket, &place, &etag).await?,
            None => match self.aws.store.get(bucket, &place).await? {
                Some(object) => Changed::Now(object.body),
                None => Changed::Gone,
            },
        };
        Ok(match changed {
            Changed::No => Seen::NotModified,
            Changed::Gone => Seen::Gone,
            Changed::Now(body) => Seen::Now(Box::new(Record::parse(&body, key)?)),
        })
    }

    /// The exports of a stack, and of those nested in it, that a run found withdrawn by an earlier one when it began.
    pub async fn found_withdrawn(&self, run: &Run, key: &RecordKey) -> Result<FoundWithdrawn> {
        let begun = self.read_run(&run.stack_document(key, "begun.json")).await?;
        let names = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let nested = begun["nested"].as_object().into_iter().flatten();
        let nested = nested.map(|(path, one)| (path.clone(), names(&one["withdrawing"])));
        Ok(FoundWithdrawn(nested.chain([(String::new(), names(&begun["withdrawing"]))]).collect()))
    }

    /// [`View::consumers`] of a view of its own.
    pub async fn scan_consumers(&self, producer: &RecordKey, exports: Option<&[String]>) -> Result<Scan> {
        View::new(self).consumers(producer, exports).await
    }
}
