//! Removes secrets from stores of version 0.1, once, when such a store is opened.

use lastdrop_model::{KeptPlan, secrets};
use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::Value;

/// The `PRAGMA user_version` of a store without unwanted secrets.
const WITHOUT_SECRETS: i64 = 1;

/// Removes the secrets of an older store from the file itself, too.
pub fn hide_secrets(connection: &mut Connection) -> rusqlite::Result<()> {
    let version = |c: &Connection| c.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
    if version(connection)? >= WITHOUT_SECRETS {
        return Ok(());
    }
    // Deleted data is overwritten.
    connection.pragma_update(None, "secure_delete", true)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have done it meanwhile.
    if version(&transaction)? < WITHOUT_SECRETS {
        let ids: Vec<String> =
            transaction.prepare("SELECT id FROM runs")?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        for id in ids {
            let (url, plan, document): (String, String, Option<String>) =
                transaction.query_row("SELECT url, plan, document FROM runs WHERE id = ?", [&id], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?;
            transaction.execute(
                "UPDATE runs SET url = ?, plan = ?, document = ? WHERE id = ?",
                params![secrets::url(&url), hidden(&plan), document.map(|d| hidden_in_document(&d)), id],
            )?;
        }
        let noise: Vec<(i64, String)> = transaction
            .prepare("SELECT rowid, url FROM noise")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (row, url) in noise {
            let url = secrets::url(&url).into_owned();
            transaction.execute(
                "UPDATE noise SET url = ?1, document = json_set(document, '$.url', ?1) WHERE rowid = ?2",
                params![url, row],
            )?;
        }
        transaction.pragma_update(None, "user_version", WITHOUT_SECRETS)?;
    }
    transaction.commit()?;
    // The write-ahead log contains them, too.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Returns a plan without its secrets; a plan that cannot be parsed stays unchanged.
fn hidden(plan: &str) -> String {
    let hide = || serde_json::to_string(&lastdrop_model::read_json::<KeptPlan>(plan)?);
    hide().unwrap_or_else(|_: serde_json::Error| plan.to_string())
}

fn hidden_in_document(document: &str) -> String {
    let hide = || {
        let mut run: Value = lastdrop_model::read_json(document)?;
        run["plan"] = serde_json::to_value(lastdrop_model::read_json::<KeptPlan>(&run["plan"].to_string())?)?;
        serde_json::to_string(&run)
    };
    hide().unwrap_or_else(|_: serde_json::Error| document.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use lastdrop_model::{KeptPlan, Plan};

    use crate::fixtures::{plan, second};
    use crate::{Store, json};

    #[test]
    fn a_store_of_an_older_version_is_closed_to_others_and_loses_its_secrets() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("lastdrop/runs.sqlite");
        let mut with_secrets = Plan::new("http://h/?token=hunter2".parse().expect("valid"), 7);
        with_secrets.requests[0].headers.push(("Authorization".into(), "Basic hunter2".into()));
        with_secrets.keep_secrets = true;
        let as_it_was = json(&KeptPlan::from(with_secrets)).replace(",\"keep_secrets\":true", "");
        {
            let store = Store::open(&path).expect("opens");
            store.begin("abc1", 5, "", &plan(), &serde_json::json!({})).expect("writes");
            let old =
                "UPDATE runs SET plan = ?1, url = 'http://h/?token=hunter2', document = json_object('plan', json(?1))";
            store.connection().execute(old, [&as_it_was]).expect("written");
            store.connection().pragma_update(None, "user_version", 0).expect("an old version");
        }
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let folder = path.parent().expect("a folder");
        assert_eq!((mode(folder), mode(&path)), (0o700, 0o600));
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("opened up");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("opened up");
        let store = Store::open(&path).expect("opens again");
        store.second("abc1", &second(0)).expect("writes");
        for file in std::fs::read_dir(folder).expect("its files").map(|f| f.expect("a file").path()) {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
            let bytes = std::fs::read(&file).expect("read");
            assert!(!bytes.windows(7).any(|w| w == b"hunter2"), "{} has the secret", file.display());
        }
        assert_eq!(mode(folder), 0o700);
        assert_eq!(store.history(1).expect("read")[0].url, "http://h/?token=***");
    }
}
