//! The hand-off example as a program: what it prints, and its exit code. Its unit tests run here too.

#[allow(dead_code)] // `main`, which the tests do without.
#[path = "../examples/handoff/main.rs"]
mod handoff;

use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Exit code, standard output, standard error.
fn handoff(args: &str) -> (u8, String, String) {
    handoff_with(args, &[])
}

/// With options whose values are paths.
fn handoff_with(args: &str, paths: &[(&str, &Path)]) -> (u8, String, String) {
    let mut all: Vec<OsString> = std::iter::once("handoff").chain(args.split_whitespace()).map(Into::into).collect();
    for (option, path) in paths {
        all.extend([OsString::from(option), path.as_os_str().to_owned()]);
    }
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = handoff::main_with(all, &mut out, &mut err);
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

/// The JSON in one of the blocks of a page.
fn block(page: &str, id: &str) -> Value {
    let (_, rest) = page.split_once(&format!("<script type=\"application/json\" id=\"{id}\">")).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// The page of a run, which has to end with this exit code, and what the run printed as JSON.
fn page(args: &str, code: u8) -> (String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    let (found, out, err) = handoff_with(&format!("{args} --json"), &[("--report", &path)]);
    assert_eq!((found, err.as_str()), (code, ""), "{args}\n{out}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the page is left");
    (fs::read_to_string(path).unwrap(), serde_json::from_str(&out).unwrap())
}

fn most(series: &Value) -> u64 {
    series.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).max().unwrap()
}

fn sum(series: &Value) -> u64 {
    series.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum()
}

#[test]
fn the_page_holds_the_json_and_leases_that_add_up_to_it() {
    let (page, report) = page(
        "--requests 150 --loss 0.1 --duplicate 0.2 --delay 500 --malformed-rate 0.2 --abort-rate 0.2 --push-rate 0.5 \
         --freeze-rate 0.01 --crash-decode-at 20",
        0,
    );
    assert_eq!(block(&page, "report"), report);
    let timeline = block(&page, "timeline");
    let leases = timeline["leases"].as_array().unwrap();
    assert_eq!((number(&timeline, "leases_total"), leases.len(), number(&timeline, "leases_every")), (150, 150, 1));
    let ended = |key: &str, how: &str| leases.iter().filter(|lease| lease["end"][key] == how).count() as u64;
    for outcome in ["completed", "expired", "aborted"] {
        assert_eq!(ended("outcome", outcome), number(&report, outcome), "{outcome}");
        assert_eq!(sum(&timeline["ages"][outcome]), number(&report, outcome), "{outcome}");
    }
    assert_eq!(ended("by", "engine-dead"), number(&report, "prefill.expired_by_crash"));
    assert_eq!(ended("by", "shutdown"), number(&report, "prefill.left_for_shutdown"));
    assert_eq!(most(&timeline["gauges"]["leases"]), number(&report, "peak_tracked"));
    assert_eq!(most(&timeline["gauges"]["blocks_allocated"]), number(&report, "peak_blocks"));
    // A heartbeat may come while its lease ends, so these are close, and not always equal.
    let renewed = leases.iter().any(|lease| number(lease, "renewals") > 0);
    assert_eq!(renewed, number(&report, "prefill.renewed") > 0);
    assert_eq!(timeline["events"][0]["at_ms"], 20_000);
}

#[test]
fn the_page_marks_leases_that_were_overdue_and_held() {
    let (page, report) = page("--requests 80 --policy hold --heartbeat 0 --lease 2 --abort-rate 0", 0);
    let timeline = block(&page, "timeline");
    let leases = timeline["leases"].as_array().unwrap();
    let overdue = leases.iter().filter(|lease| !lease["overdue_ms"].is_null()).count();
    assert!(overdue > 0);
    assert_eq!(overdue as u64, number(&report, "prefill.overdue"));
}

#[test]
fn the_page_of_a_failed_run_is_written_and_the_exit_code_stays() {
    let (page, report) = page("--requests 40 --sabotage leak", 1);
    assert_eq!(block(&page, "report")["failures"], report["failures"]);
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let (page, _) = page("--requests 5", 0);
    // What comes from the run is data, and may say anything.
    let (markup, rest) = page.split_once("<script type=\"application/json\" id=\"report\">").unwrap();
    let script = rest.rsplit_once("</script>").unwrap().0.rsplit_once("<script>").unwrap().1;
    for part in [markup, script] {
        for reference in
            ["://", "src=", "href", "url(", "@import", "import(", "fetch(", "XMLHttpRequest", "WebSocket", "innerHTML"]
        {
            assert!(!part.contains(reference), "{reference}");
        }
    }
    assert!(markup.contains("content=\"default-src 'none';"));
}

#[test]
fn a_trace_whose_name_looks_like_markup_does_not_break_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("<").join("script><b>\"'&{{timeline}} pré😀.jsonl");
    fs::create_dir(trace.parent().unwrap()).unwrap();
    fs::write(&trace, r#"{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}"#).unwrap();
    let page = folder.path().join("pré <b>.html");
    let (code, out, err) = handoff_with("--json --abort-rate 0", &[("--trace", &trace), ("--report", &page)]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(block(&page, "report"), serde_json::from_str::<Value>(&out).unwrap());
    assert_eq!(block(&page, "report")["settings"]["trace"], trace.to_str().unwrap());
    assert_eq!(block(&page, "timeline")["leases_total"], 1);
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_utf8_is_shown_as_well_as_can_be() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"page-\xff.html"));
    let (code, out, err) = handoff_with("--requests 3 --json", &[("--report", &path)]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        serde_json::from_str::<Value>(&out).unwrap()["settings"]["report"]
            .as_str()
            .unwrap()
            .ends_with("page-\u{fffd}.html")
    );
    assert!(fs::read_to_string(path).is_ok());
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("no/such/folder/page.html"), folder.path().to_owned()] {
        let (code, out, err) = handoff_with("--requests 3", &[("--report", &path)]);
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(err.starts_with(&format!("error: cannot write the report {}: ", path.display())), "{err}");
    }
    // Nor does a run that never starts leave anything, or touch what is there.
    let path = folder.path().join("page.html");
    fs::write(&path, "old").unwrap();
    let (code, _, _) = handoff_with("--trace no/such/file.jsonl", &[("--report", &path)]);
    assert_eq!((code, fs::read_to_string(&path).unwrap().as_str()), (2, "old"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
