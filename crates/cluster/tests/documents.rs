//! Documents as the program of version 1 wrote them (recorded from it): they are read, and what is written of the same
//! content has no other field, as that program refuses fields that it does not know.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;

use netraid_cluster::{
    Problem,
    access::AccessFile,
    agent::{AgentStatus, Answer, LedgerPage, Operation, SegmentPage},
    audit::LogPage,
    mediator::{
        AccessEntry, AgentEntry, Beat, Beaten, CheckReport, Close, Create, Entry, Join, Joined,
        MediatorStatus, NewAccess, NewToken, Open, Page, PlanPage, Rename, Replace, SetState,
        TransferPlan,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// One exchange.
#[derive(Deserialize)]
struct Exchange {
    /// `mediator` or `agent`.
    to: String,
    /// Method and path, ids in it as `{id}`, without a query.
    line: String,
    status: u16,
    request: Value,
    answer: Value,
}

/// An object without fields.
#[derive(Serialize, Deserialize)]
struct Nothing {}

fn exchanges() -> Vec<Exchange> {
    serde_json::from_str(include_str!("golden/documents.json")).unwrap()
}

/// What is written of what is read of a document.
fn again<T: Serialize + DeserializeOwned>(document: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(document.clone())?)
}

/// How a request and its answer are read.
type Reads = (Again, Again);
type Again = fn(&Value) -> Result<Value, serde_json::Error>;

fn reads(to: &str, line: &str) -> Reads {
    match (to, line) {
        ("mediator", "POST /v1/names") => (again::<Create>, again::<Entry>),
        ("mediator", "GET /v1/names") => (again::<()>, again::<Page>),
        ("mediator", "GET /v1/name") => (again::<()>, again::<Entry>),
        ("mediator", "DELETE /v1/name" | "DELETE /v1/plans/{id}" | "DELETE /v1/access/{id}") => {
            (again::<()>, again::<Nothing>)
        }
        ("mediator", "POST /v1/rename") => (again::<Rename>, again::<Entry>),
        ("mediator", "POST /v1/plans") => (again::<Open>, again::<TransferPlan>),
        ("mediator", "POST /v1/plans/{id}/renew") => (again::<Nothing>, again::<TransferPlan>),
        ("mediator", "POST /v1/plans/{id}/state") => (again::<SetState>, again::<Entry>),
        ("mediator", "POST /v1/plans/{id}/replace") => (again::<Replace>, again::<TransferPlan>),
        ("mediator", "POST /v1/plans/{id}/close") => (again::<Close>, again::<Nothing>),
        ("mediator", "GET /v1/plans") => (again::<()>, again::<PlanPage>),
        ("mediator", "GET /v1/agents") => (again::<()>, again::<Vec<AgentEntry>>),
        ("mediator", "POST /v1/agents") => (again::<Join>, again::<Joined>),
        ("mediator", "PUT /v1/agents/{id}") => (again::<Beat>, again::<Beaten>),
        ("mediator", "POST /v1/agents/{id}/drain" | "POST /v1/agents/{id}/undrain") => {
            (again::<()>, again::<AgentEntry>)
        }
        ("mediator", "POST /v1/access") => (again::<NewAccess>, again::<NewToken>),
        ("mediator", "GET /v1/access") => (again::<()>, again::<Vec<AccessEntry>>),
        ("mediator", "GET /v1/log") => (again::<()>, again::<LogPage>),
        ("mediator", "GET /v1/check") => (again::<()>, again::<CheckReport>),
        ("mediator", "GET /v1/status") => (again::<()>, again::<MediatorStatus>),
        ("agent", "POST /v1/operations") => (again::<Vec<Operation>>, again::<Vec<Answer>>),
        ("agent", "GET /v1/ledger") => (again::<()>, again::<LedgerPage>),
        ("agent", "GET /v1/segments") => (again::<()>, again::<SegmentPage>),
        ("agent", "GET /v1/status") => (again::<()>, again::<AgentStatus>),
        _ => panic!("no document is known of {line} to the {to}"),
    }
}

#[test]
fn what_the_program_before_sends_is_read_and_written_as_it_was() {
    let mut lines = BTreeSet::new();
    for Exchange { to, line, status, request, answer } in exchanges() {
        let what = format!("{line} to the {to}");
        let (of_request, of_answer) = reads(&to, &line);
        let of_answer = if status == 200 { of_answer } else { again::<Problem> };
        assert_eq!(of_request(&request).unwrap(), request, "{what}");
        assert_eq!(of_answer(&answer).unwrap(), answer, "{what}");
        lines.insert(what);
    }
    assert!(lines.len() > 20, "{lines:?}");
}

#[test]
fn each_operation_of_the_program_before_is_among_them() {
    let operations =
        exchanges().into_iter().filter(|exchange| exchange.line.ends_with("operations"));
    let names: BTreeSet<String> = operations
        .flat_map(|exchange| exchange.request.as_array().unwrap().clone())
        .flat_map(|operation| operation.as_object().unwrap().keys().cloned().collect::<Vec<_>>())
        .collect();
    let expected = [
        "book",
        "commit",
        "create_segment",
        "end_plan",
        "extend_plan",
        "hold",
        "raise_generation",
        "release",
        "remove_segment",
        "renew",
        "set_label",
    ];
    assert_eq!(names, expected.map(str::to_owned).into());
}

#[test]
fn an_answer_that_says_more_is_read_and_one_of_a_code_that_is_not_known_too() {
    for Exchange { to, line, mut answer, status, .. } in exchanges() {
        let before = answer.clone();
        let Some(fields) = answer.as_object_mut().filter(|_| status == 200) else { continue };
        fields.insert("later".to_owned(), serde_json::json!({ "x": [1] }));
        assert_eq!(reads(&to, &line).1(&answer).unwrap(), before, "{line} to the {to}");
    }
    let fault = r#"{"Err":{"code":"too_hot","detail":"x"}}"#;
    let fault: Answer = serde_json::from_str(fault).unwrap();
    assert_eq!(fault.unwrap_err().code, netraid_cluster::agent::FaultCode::Failed);
    let problem: Problem = serde_json::from_str(r#"{"code":"too_hot","detail":"x"}"#).unwrap();
    assert_eq!(problem.code, netraid_cluster::Code::Internal);
}

#[test]
fn an_access_file_that_says_more_is_read() {
    use std::os::unix::fs::OpenOptionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.access");
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    let text = serde_json::json!({
        "version": 1, "mediator": "https://x:1", "token": "t", "others": ["https://y:1"],
    });
    serde_json::to_writer(file, &text).unwrap();
    assert_eq!(AccessFile::read(&path).unwrap().mediator, "https://x:1");
}
