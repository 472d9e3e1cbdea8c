//! The outbox: signed reports that wait until the registry has acknowledged them.
//!
//! It has a largest number of rows: a device that is offline for weeks loses its oldest events, not
//! its disk. Of reports that replace one another only the newest is kept.

use redb::ReadableTable;
use serde::{Deserialize, Serialize};

use super::database::{Database, OUTBOX, Transaction, failed};
use super::{StoreError, record};

/// Most rows kept.
pub const MOST_ROWS: usize = 256;

/// Reports of one kind replace one another, those without a kind are all kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replaces {
    /// An event: every one counts.
    Nothing,
    /// Facts about the device.
    Facts,
    /// The device's whole state.
    State,
    /// A desired state that was refused: whoever can send those must not push out what happened.
    Refusal,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The agent's start that wrote it.
    pub epoch: u64,
    /// Its number within that start.
    pub sequence: u64,
    /// The signed report.
    pub signed: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
enum RowRecord {
    V1 { replaces: Replaces, signed: serde_bytes::ByteBuf },
}

fn read_row(key: (u64, u64), bytes: &[u8]) -> Result<(Replaces, Vec<u8>), StoreError> {
    match record::decode(bytes) {
        Ok(RowRecord::V1 { replaces, signed }) => Ok((replaces, signed.into_vec())),
        Err(why) => Err(StoreError::Record { key: format!("outbox {}/{}", key.0, key.1), why }),
    }
}

impl Transaction {
    /// Adds a row, taking out those that it replaces and, where there are too many, the oldest.
    pub fn push_row(&mut self, row: &Row, replaces: Replaces) -> Result<(), StoreError> {
        let mut table = self.inner.open_table(OUTBOX).map_err(failed("open the outbox"))?;
        let mut present = Vec::new();
        for entry in table.iter().map_err(failed("read the outbox"))? {
            let (key, value) = entry.map_err(failed("read the outbox"))?;
            let key = key.value();
            // A damaged row is not worth the device: it goes out of the way.
            let kind = read_row(key, value.value()).map(|(kind, _)| kind);
            present.push((key, kind.ok()));
        }
        let mut gone: Vec<(u64, u64)> = present
            .iter()
            .filter(|(_, kind)| kind.is_none_or(|kind| kind == replaces && kind != Replaces::Nothing))
            .map(|(key, _)| *key)
            .collect();
        let kept = present.len() - gone.len();
        let surplus = (kept + 1).saturating_sub(MOST_ROWS);
        gone.extend(
            present
                .iter()
                .filter(|(_, kind)| *kind == Some(Replaces::Nothing))
                .map(|(key, _)| *key)
                .take(surplus),
        );
        for key in gone {
            table.remove(key).map_err(failed("remove a row"))?;
        }
        let bytes = record::encode(&RowRecord::V1 {
            replaces,
            signed: serde_bytes::ByteBuf::from(row.signed.clone()),
        })
        .map_err(|why| StoreError::Record { key: "outbox".to_owned(), why })?;
        table.insert((row.epoch, row.sequence), bytes.as_slice()).map_err(failed("write a row"))?;
        Ok(())
    }

    /// Puts another signature on every row that waits; one that cannot have it goes.
    pub fn sign_rows_anew(&mut self, sign: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Result<(), StoreError> {
        let mut table = self.inner.open_table(OUTBOX).map_err(failed("open the outbox"))?;
        let mut rows = Vec::new();
        for entry in table.iter().map_err(failed("read the outbox"))? {
            let (key, value) = entry.map_err(failed("read the outbox"))?;
            let row = read_row(key.value(), value.value()).ok();
            let signed = row.and_then(|(replaces, signed)| Some((replaces, sign(&signed)?)));
            rows.push((key.value(), signed));
        }
        for (key, row) in rows {
            table.remove(key).map_err(failed("remove a row"))?;
            let Some((replaces, signed)) = row else { continue };
            let bytes =
                record::encode(&RowRecord::V1 { replaces, signed: serde_bytes::ByteBuf::from(signed) })
                    .map_err(|why| StoreError::Record { key: "outbox".to_owned(), why })?;
            table.insert(key, bytes.as_slice()).map_err(failed("write a row"))?;
        }
        Ok(())
    }

    /// Takes out every row: nobody is left to tell.
    pub fn clear_rows(&mut self) -> Result<(), StoreError> {
        let mut table = self.inner.open_table(OUTBOX).map_err(failed("open the outbox"))?;
        table.retain(|_, _| false).map_err(failed("remove the rows"))
    }

    /// Takes out these rows (epoch, sequence): the registry has them. Returns how many were there.
    pub fn drop_rows(&mut self, rows: &[(u64, u64)]) -> Result<usize, StoreError> {
        let mut table = self.inner.open_table(OUTBOX).map_err(failed("open the outbox"))?;
        let mut gone = 0;
        for row in rows {
            gone += usize::from(table.remove(row).map_err(failed("remove a row"))?.is_some());
        }
        Ok(gone)
    }
}

impl Database {
    /// The oldest rows, as many as fit into `bytes` (at least one, where there is one).
    pub fn oldest_rows(&self, bytes: usize) -> Result<Vec<Row>, StoreError> {
        self.look(|read| {
            let table = read.open_table(OUTBOX).map_err(failed("open the outbox"))?;
            let mut rows = Vec::new();
            let mut filled = 0;
            for entry in table.iter().map_err(failed("read the outbox"))? {
                let (key, value) = entry.map_err(failed("read the outbox"))?;
                let (epoch, sequence) = key.value();
                let Ok((_, signed)) = read_row((epoch, sequence), value.value()) else {
                    continue;
                };
                filled += signed.len() + 16;
                if filled > bytes && !rows.is_empty() {
                    break;
                }
                rows.push(Row { epoch, sequence, signed });
            }
            Ok(rows)
        })
    }

    /// How many rows wait.
    pub fn rows_waiting(&self) -> Result<u64, StoreError> {
        self.look(|read| {
            let table = read.open_table(OUTBOX).map_err(failed("open the outbox"))?;
            redb::ReadableTableMetadata::len(&table).map_err(failed("count rows"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(epoch: u64, sequence: u64) -> Row {
        Row { epoch, sequence, signed: vec![7; 100] }
    }

    fn keys(database: &Database) -> Vec<(u64, u64)> {
        let rows = database.oldest_rows(usize::MAX).unwrap();
        rows.iter().map(|row| (row.epoch, row.sequence)).collect()
    }

    #[test]
    fn an_acknowledgement_takes_out_its_rows_and_no_others() {
        let database = Database::from_bytes(&[]).unwrap();
        for (epoch, sequence) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            database.write(|t| t.push_row(&row(epoch, sequence), Replaces::Nothing)).unwrap();
        }
        assert_eq!(database.write(|t| t.drop_rows(&[(2, 1), (1, 2)])).unwrap(), 2);
        assert_eq!(keys(&database), [(1, 1), (2, 2)]);
        assert_eq!(database.write(|t| t.drop_rows(&[(1, 2), (9, 9)])).unwrap(), 0);
    }

    #[test]
    fn a_newer_state_replaces_an_older_one_and_events_stay() {
        let database = Database::from_bytes(&[]).unwrap();
        let kinds = [Replaces::State, Replaces::Nothing, Replaces::Facts, Replaces::State];
        for (n, kind) in (1..).zip(kinds) {
            database.write(|t| t.push_row(&row(1, n), kind)).unwrap();
        }
        assert_eq!(keys(&database), [(1, 2), (1, 3), (1, 4)]);
    }

    #[test]
    fn weeks_offline_lose_the_oldest_events_only() {
        let database = Database::from_bytes(&[]).unwrap();
        database.write(|t| t.push_row(&row(1, 0), Replaces::State)).unwrap();
        database
            .write(|t| {
                for n in 1..=MOST_ROWS as u64 + 9 {
                    t.push_row(&row(1, n), Replaces::Nothing)?;
                }
                Ok(())
            })
            .unwrap();
        let keys = keys(&database);
        assert_eq!(keys.len(), MOST_ROWS);
        assert_eq!(keys[0], (1, 0));
        assert_eq!(keys[1], (1, 11));
    }

    #[test]
    fn a_packet_is_filled_and_never_empty() {
        let database = Database::from_bytes(&[]).unwrap();
        for n in 1..=5 {
            database.write(|t| t.push_row(&row(1, n), Replaces::Nothing)).unwrap();
        }
        assert_eq!(database.oldest_rows(1).unwrap().len(), 1);
        assert_eq!(database.oldest_rows(300).unwrap().len(), 2);
        assert_eq!(database.oldest_rows(10_000).unwrap().len(), 5);
    }
}
