//! Certificates that the registry's authority has issued, and keys that never count again.
//!
//! Both outlive their target: the list of revoked certificates names them until they expire, and a key
//! that was revoked is not registered again under any name.

use jiff::Timestamp;
use selvedge_package::DeviceId;

use super::{Change, Store};
use crate::error::Error;
use crate::pki::{Issued, Revoked};

/// The list of revoked certificates names one for this long after its end: clocks differ.
const KEPT_MS: i64 = 24 * 3600 * 1000;

/// A file's certificate has done what it was for once the device has had an own one for so long.
const SETTLED_MS: i64 = 24 * 3600 * 1000;

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// In an enrolment file, with its key: to reach the broker the first time.
    Bootstrap,
    /// A device's own.
    Device,
}

impl Use {
    fn word(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Device => "device",
        }
    }
}

/// A certificate that was issued before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Serial number, hexadecimal.
    pub serial: String,
    /// When it ends, in milliseconds since 1970.
    pub not_after_ms: i64,
    /// DER, the device's own first.
    pub chain: Vec<Vec<u8>>,
}

#[derive(sqlx::FromRow)]
struct Row {
    serial: String,
    not_after_ms: i64,
    chain: String,
}

impl Row {
    fn certificate(self) -> Result<Certificate, Error> {
        let parts = self.chain.split(',').filter(|part| !part.is_empty()).map(hex::decode);
        let chain = parts
            .collect::<Result<_, _>>()
            .map_err(|error| Error::Corrupt { what: "certificate chain", why: error.to_string() })?;
        Ok(Certificate { serial: self.serial, not_after_ms: self.not_after_ms, chain })
    }
}

impl Store {
    /// The newest certificate of a device's own that is not revoked.
    pub async fn certificate(&self, device: &DeviceId) -> Result<Option<Certificate>, Error> {
        let row: Option<Row> = sqlx::query_as(
            "SELECT serial, not_after_ms, chain FROM certificates WHERE device = $1 AND kind = 'device' \
             AND revoked_ms IS NULL ORDER BY not_after_ms DESC, serial LIMIT 1",
        )
        .bind(device.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(Error::database("read a certificate"))?;
        row.map(Row::certificate).transpose()
    }

    /// What was issued for exactly this request, where it is not revoked and ends after `after_ms`.
    pub async fn issued_for(
        &self,
        device: &DeviceId,
        request: &str,
        after_ms: i64,
    ) -> Result<Option<Certificate>, Error> {
        let row: Option<Row> = sqlx::query_as(
            "SELECT serial, not_after_ms, chain FROM certificates WHERE device = $1 AND request = $2 \
             AND revoked_ms IS NULL AND not_after_ms > $3 ORDER BY not_after_ms DESC LIMIT 1",
        )
        .bind(device.as_str())
        .bind(request)
        .bind(after_ms)
        .fetch_optional(&self.pool)
        .await
        .map_err(Error::database("read a certificate"))?;
        row.map(Row::certificate).transpose()
    }

    /// Every revoked certificate that brokers must know.
    pub async fn revoked_certificates(&self, now_ms: i64) -> Result<Vec<Revoked>, Error> {
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "SELECT serial, revoked_ms FROM certificates WHERE revoked_ms IS NOT NULL AND not_after_ms > $1 \
             ORDER BY revoked_ms, serial",
        )
        .bind(now_ms.saturating_sub(KEPT_MS))
        .fetch_all(&self.pool)
        .await
        .map_err(Error::database("list revoked certificates"))?;
        let revoked = |(serial, ms)| {
            let at = Timestamp::from_millisecond(ms)
                .map_err(|error| Error::Corrupt { what: "time", why: error.to_string() })?;
            Ok(Revoked { serial, at })
        };
        rows.into_iter().map(revoked).collect()
    }

    /// Whether a device's key was revoked, under whatever name.
    pub async fn key_revoked(&self, key: &[u8; 32]) -> Result<bool, Error> {
        let found: Option<(String,)> =
            sqlx::query_as("SELECT device FROM revoked_keys WHERE public_key = $1")
                .bind(hex::encode(key))
                .fetch_optional(&self.pool)
                .await
                .map_err(Error::database("look a revoked key up"))?;
        Ok(found.is_some())
    }
}

impl Change {
    /// Keep a certificate. `request` is the digest of what asked for it, and `key` the device's key that
    /// did; both are empty for a bootstrap one. What has expired of the device is forgotten.
    pub async fn keep_certificate(
        &mut self,
        device: &DeviceId,
        kind: Use,
        issued: &Issued,
        (request, key): (&str, &str),
        now_ms: i64,
    ) -> Result<(), Error> {
        sqlx::query("DELETE FROM certificates WHERE device = $1 AND not_after_ms < $2")
            .bind(device.as_str())
            .bind(now_ms.saturating_sub(KEPT_MS))
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("forget expired certificates"))?;
        let chain: Vec<String> = issued.chain.iter().map(hex::encode).collect();
        sqlx::query(
            "INSERT INTO certificates (serial, device, kind, public_key, request, chain, issued_ms, not_after_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(&issued.serial)
        .bind(device.as_str())
        .bind(kind.word())
        .bind(key)
        .bind(request)
        .bind(match kind {
            Use::Device => chain.join(","),
            Use::Bootstrap => String::new(),
        })
        .bind(now_ms)
        .bind(issued.not_after.as_millisecond())
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("keep a certificate"))?;
        Ok(())
    }

    /// Revoke certificates of a device: those of one use, or all.
    pub async fn revoke_certificates(
        &mut self,
        device: &DeviceId,
        kind: Option<Use>,
        now_ms: i64,
    ) -> Result<(), Error> {
        sqlx::query(
            "UPDATE certificates SET revoked_ms = $2 WHERE device = $1 AND revoked_ms IS NULL \
             AND (kind = $3 OR $3 = '')",
        )
        .bind(device.as_str())
        .bind(now_ms)
        .bind(kind.map_or("", Use::word))
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("revoke certificates"))?;
        Ok(())
    }

    /// Revoke the certificates of enrolment files whose devices have used up their token and got an own one
    /// a day ago: whoever finds such a file shall not even disturb a connection. Says how many there were.
    pub async fn revoke_used_files(&mut self, now_ms: i64) -> Result<u64, Error> {
        let done = sqlx::query(
            "UPDATE certificates SET revoked_ms = $1 WHERE kind = 'bootstrap' AND revoked_ms IS NULL \
             AND EXISTS (SELECT 1 FROM certificates own JOIN targets t ON t.name = own.device \
             WHERE own.device = certificates.device AND own.kind = 'device' AND own.revoked_ms IS NULL \
             AND own.issued_ms >= certificates.issued_ms AND own.issued_ms < $2 AND t.token_hash = '')",
        )
        .bind(now_ms)
        .bind(now_ms.saturating_sub(SETTLED_MS))
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("revoke certificates of used files"))?;
        Ok(done.rows_affected())
    }

    /// Revoke the key of a target, so that it is registered nowhere again. The target has none then.
    pub async fn revoke_key(&mut self, device: &DeviceId, now_ms: i64) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO revoked_keys (public_key, device, revoked_ms) \
             SELECT public_key, name, $2 FROM targets WHERE name = $1 AND public_key IS NOT NULL \
             ON CONFLICT (public_key) DO NOTHING",
        )
        .bind(device.as_str())
        .bind(now_ms)
        .execute(&mut *self.transaction)
        .await
        .map_err(Error::database("revoke a device key"))?;
        sqlx::query("UPDATE targets SET public_key = NULL, enrolled_ms = NULL WHERE name = $1")
            .bind(device.as_str())
            .execute(&mut *self.transaction)
            .await
            .map_err(Error::database("take a device key from its target"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::store::targets::Kind;

    const DAY: i64 = 24 * 3600 * 1000;

    fn issued(serial: &str, ends_ms: i64) -> Issued {
        let not_after = Timestamp::from_millisecond(ends_ms).unwrap();
        Issued { serial: serial.to_owned(), not_after, chain: vec![vec![1, 2], vec![3]] }
    }

    async fn target() -> (tempfile::TempDir, Store, DeviceId) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("db")).await.unwrap();
        let device: DeviceId = "edge-1".parse().unwrap();
        let mut change = store.change().await.unwrap();
        change.add_target("default", &device, Kind::Device, &BTreeMap::new(), "hash", 0).await.unwrap();
        change.commit().await.unwrap();
        (folder, store, device)
    }

    async fn serials(store: &Store, now_ms: i64) -> Vec<String> {
        let revoked = store.revoked_certificates(now_ms).await.unwrap();
        revoked.into_iter().map(|revoked| revoked.serial).collect()
    }

    #[tokio::test]
    async fn revoked_ones_are_listed_until_a_day_after_their_end_even_without_their_target() {
        let (_folder, store, device) = target().await;
        let mut change = store.change().await.unwrap();
        change.keep_certificate(&device, Use::Device, &issued("0a", 9 * DAY), ("r", "k"), 0).await.unwrap();
        change.keep_certificate(&device, Use::Bootstrap, &issued("0b", 3 * DAY), ("", ""), 0).await.unwrap();
        change.commit().await.unwrap();
        let known = store.certificate(&device).await.unwrap().unwrap();
        assert_eq!((known.serial.as_str(), known.chain), ("0a", vec![vec![1, 2], vec![3]]));
        assert!(store.issued_for(&device, "r", 8 * DAY).await.unwrap().is_some());
        assert!(store.issued_for(&device, "r", 9 * DAY).await.unwrap().is_none());
        assert!(store.issued_for(&device, "other", 0).await.unwrap().is_none());
        let mut change = store.change().await.unwrap();
        change.remove_target("default", &device, DAY).await.unwrap();
        change.commit().await.unwrap();
        assert_eq!(serials(&store, DAY).await, ["0a", "0b"]);
        assert_eq!(serials(&store, 4 * DAY).await, ["0a"]);
        assert_eq!(serials(&store, 10 * DAY).await, [""; 0]);
        assert!(store.certificate(&device).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_used_file_loses_its_certificate_after_a_day_with_an_own_one() {
        let (_folder, store, device) = target().await;
        let clean = async |now_ms| {
            let mut change = store.change().await.unwrap();
            let count = change.revoke_used_files(now_ms).await.unwrap();
            change.commit().await.unwrap();
            count
        };
        let mut change = store.change().await.unwrap();
        change.keep_certificate(&device, Use::Bootstrap, &issued("0b", 30 * DAY), ("", ""), 5).await.unwrap();
        change.commit().await.unwrap();
        assert_eq!(clean(3 * DAY).await, 0, "it has no own one");
        let mut change = store.change().await.unwrap();
        change.keep_certificate(&device, Use::Device, &issued("0a", 99 * DAY), ("r", "k"), 10).await.unwrap();
        change.commit().await.unwrap();
        assert_eq!(clean(3 * DAY).await, 0, "its token is not used up");
        let mut change = store.change().await.unwrap();
        change.use_up_token(&device).await.unwrap();
        change.commit().await.unwrap();
        assert_eq!(clean(DAY).await, 0, "too early");
        assert_eq!(clean(DAY + 11).await, 1);
        assert_eq!(serials(&store, DAY + 11).await, ["0b"]);
        // The next file's is another matter.
        let mut change = store.change().await.unwrap();
        change.set_token(&device, "next").await.unwrap();
        change
            .keep_certificate(&device, Use::Bootstrap, &issued("0c", 40 * DAY), ("", ""), 2 * DAY)
            .await
            .unwrap();
        change.commit().await.unwrap();
        assert_eq!(clean(9 * DAY).await, 0);
    }
}
