//! The hand-off example as a program: what it prints, and its exit code. Its unit tests run here too.

#[allow(dead_code)] // `main`, which the tests do without.
#[path = "../examples/handoff/main.rs"]
mod handoff;

use serde_json::Value;
use std::path::PathBuf;

/// Exit code, standard output, standard error.
fn handoff(args: &str) -> (u8, String, String) {
    let args = std::iter::once("handoff").chain(args.split_whitespace()).map(Into::into);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = handoff::main_with(args, &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// The report of a run that has to end with this exit code.
fn report(args: &str, code: u8) -> Value {
    let (found, out, err) = handoff(&format!("{args} --json"));
    assert_eq!(found, code, "{args}\n{out}{err}");
    assert_eq!((out.lines().count(), err.as_str()), (1, ""));
    serde_json::from_str(&out).unwrap()
}

fn number(report: &Value, name: &str) -> u64 {
    name.split('.').fold(report, |value, key| &value[key]).as_u64().unwrap_or_else(|| panic!("no {name}: {report}"))
}

fn text_file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kvlease-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn without_faults_every_lease_ends_and_the_report_has_every_field() {
    let report = report("--requests 80 --abort-rate 0 --freeze-rate 0", 0);
    assert_eq!(number(&report, "requests"), 80);
    // A machine under load may let a lease of 0.2 s run out; it has to be accounted for all the same.
    assert_eq!(number(&report, "completed") + number(&report, "expired"), 80);
    assert!(number(&report, "completed") > 0 && number(&report, "peak_tracked") > 0);
    for name in ["aborted", "malformed", "double_released", "leaked_blocks"] {
        assert_eq!(number(&report, name), 0, "{name}");
    }
    for name in ["late_notifications", "duplicates", "stale_reads", "stale_reads_reported", "seed"] {
        number(&report, name);
    }
    assert!(report["wall_s"].as_f64().unwrap() > 0.0);
    assert!(report["hold_model"].as_str().unwrap().contains("log-normal"));
    assert_eq!(report["settings"]["consumers"], 4);
    assert_eq!(report["failures"], Value::Array(vec![]));
}

#[test]
fn with_every_fault_of_the_network_nothing_is_silent() {
    let report = report(
        "--requests 150 --loss 0.1 --duplicate 0.2 --delay 500 --reorder 0.2 --malformed-rate 0.2 --abort-rate 0.2 \
         --push-rate 0.5 --freeze-rate 0.01 --seed 3",
        0,
    );
    for name in ["network.lost", "network.duplicated", "network.delayed", "malformed", "aborted", "stale_reads"] {
        assert!(number(&report, name) > 0, "{name}: {report}");
    }
    assert!(number(&report, "duplicates") + number(&report, "late_notifications") > 0);
    assert_eq!(number(&report, "stale_reads"), number(&report, "stale_reads_reported"));
}

#[test]
fn when_no_message_arrives_every_lease_runs_out_and_nothing_is_used() {
    let report = report("--requests 40 --loss 1 --abort-rate 0", 0);
    assert_eq!((number(&report, "completed"), number(&report, "expired")), (0, 40));
    assert_eq!((number(&report, "reads.used"), number(&report, "reads.unverified")), (0, 160));
}

#[test]
fn when_the_decode_engine_dies_its_leases_end_and_another_takes_over() {
    let report = report("--requests 120 --crash-decode-at 15 --abort-rate 0 --freeze-rate 0", 0);
    assert!(number(&report, "reads.died") > 0 && number(&report, "expired") > 0, "{report}");
    assert!(number(&report, "completed") > 0, "{report}");
}

#[test]
fn held_leases_wait_for_slow_readers() {
    // Short leases that nobody renews: under `release`, this makes stale reads.
    let report = report("--requests 80 --policy hold --heartbeat 0 --lease 2 --abort-rate 0", 0);
    assert!(number(&report, "prefill.overdue") > 0);
    assert_eq!((number(&report, "completed"), number(&report, "stale_reads")), (80, 0));
}

#[test]
fn fire_and_forget_over_a_lossy_network_is_found_out() {
    let report = report("--requests 80 --fire-and-forget --loss 0.5 --abort-rate 0.5", 1);
    assert!(number(&report, "stale_reads") > number(&report, "stale_reads_reported"));
}

#[test]
fn the_checks_bite() {
    let leak = report("--requests 40 --sabotage leak", 1);
    assert!(number(&leak, "leaked_blocks") > 0 && number(&leak, "double_released") == 0);

    let double = report("--requests 40 --sabotage double-release", 1);
    assert!(number(&double, "double_released") == 1 && number(&double, "leaked_blocks") == 0);

    let silent = report("--requests 80 --sabotage silent-stale --abort-rate 0.5", 1);
    assert!(number(&silent, "stale_reads") > number(&silent, "stale_reads_reported"));
    assert!(silent["failures"][0].as_str().unwrap().contains("unreported"), "{silent}");
}

#[test]
fn a_trace_is_read_and_the_table_says_how_it_went() {
    let line = r#"{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}"#;
    let path = text_file("good.jsonl", &format!("{line}\n{line}\n"));
    let (code, out, err) = handoff(&format!("--trace {} --abort-rate 0 --freeze-rate 0", path.display()));
    std::fs::remove_file(&path).unwrap();
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for part in
        ["2 requests in 0 s, 2000 tokens in, 10 out", "hold times", "message lost", "ok: nothing released twice"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn a_broken_trace_is_refused_by_line_before_anything_starts() {
    let line = r#"{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}"#;
    let path = text_file("broken.jsonl", &format!("{line}\n{{\"timestamp\": 1,\n{line}\n"));
    let (code, out, err) = handoff(&format!("--trace {}", path.display()));
    std::fs::remove_file(&path).unwrap();
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("broken.jsonl, line 2: "), "{err}");

    let (code, out, err) = handoff("--trace no/such/file.jsonl");
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("error: cannot open the trace no/such/file.jsonl: "), "{err}");
}

#[test]
fn arguments_that_cannot_be_meant_are_refused_with_a_hint() {
    for (args, hint) in [
        ("--loss 2", "expected a number from 0 to 1"),
        ("--loss NaN", "expected a number from 0 to 1"),
        ("--lease 0", "expected a number from 0.1 to 86400"),
        ("--consumers 256", "256 is not in 1..=255"),
        ("--policy keep", "[possible values: release, hold]"),
        ("--requests 10 --crash-decode-at 500", "the last request arrives at"),
        ("--push", "--push is for --transport nixl"),
        ("--transport nixl --loss 0.1", "NIXL has no such faults"),
        #[cfg(not(feature = "nixl"))]
        ("--transport nixl", "build it with --features nixl"),
    ] {
        let (code, out, err) = handoff(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args}");
        assert!(err.contains(hint), "{args}: {err}");
    }
    let (code, out, _) = handoff("--help");
    assert!(code == 0 && out.contains("no public trace has"), "{out}");
}
