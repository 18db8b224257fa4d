//! The page of `--report`: `report.html`, with the data in it.
//!
//! All that it shows, its script draws from three blocks of JSON: `report` is what `--json` prints, `timeline` is the
//! [`Timeline`], and `tables` says which numbers of the report stand in which table. Nothing is fetched, and a policy in
//! the page has the browser see to that.

use super::report::{FAULTS, LEASES, READS, Row};
use super::timeline::Timeline;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const TEMPLATE: &str = include_str!("report.html");

#[derive(Serialize)]
struct Tables {
    leases: &'static [Row],
    reads: &'static [Row],
    faults: &'static [Row],
}

/// A page that is yet to be written: a file beside it that takes its place when all of it is there.
pub struct Page {
    file: NamedTempFile,
    path: PathBuf,
}

impl Page {
    /// Makes sure that the page can be written, before there is anything to lose.
    pub fn create(path: &Path) -> Result<Self, String> {
        let cannot = |what: &dyn std::fmt::Display| format!("cannot write the report {}: {what}", path.display());
        // Where it leads to, if it is a link.
        let target = match path.metadata() {
            Ok(there) if !there.is_file() => return Err(cannot(&"there is something that is not a file")),
            Ok(_) => path.canonicalize().map_err(|error| cannot(&error))?,
            Err(_) => path.to_owned(),
        };
        if target.file_name().is_none() {
            return Err(cannot(&"that is not the name of a file"));
        }
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folder.metadata().map_err(|error| cannot(&format_args!("{}: {error}", folder.display())))?;
        let mut file = tempfile::Builder::new();
        // For whom any new file is; not only for this user, as a temporary one.
        #[cfg(unix)]
        file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = file.prefix(".handoff-").suffix(".html").tempfile_in(folder).map_err(|error| cannot(&error))?;
        Ok(Page { file, path: target })
    }

    /// Writes all of it, and puts it in its place. `report` is JSON.
    pub fn write(mut self, report: &str, timeline: &Timeline) -> Result<(), String> {
        let path = self.path.display().to_string();
        let written = self.file.write_all(render(report, timeline).as_bytes()).and_then(|()| self.file.flush());
        let placed = written.and_then(|()| self.file.persist(&self.path).map_err(|error| error.error));
        placed.map(drop).map_err(|error| format!("cannot write the report {path}: {error}"))
    }
}

fn render(report: &str, timeline: &Timeline) -> String {
    let tables = Tables { leases: LEASES, reads: READS, faults: FAULTS };
    let blocks = [
        ("{{report}}", report.to_owned()),
        ("{{timeline}}", serde_json::to_string(timeline).expect("a timeline is plain data")),
        ("{{tables}}", serde_json::to_string(&tables).expect("tables are plain data")),
    ];
    // From the front to the back, so that the names of the places may stand in the data.
    let (mut page, mut rest) = (String::new(), TEMPLATE);
    for (place, json) in blocks {
        let (before, after) = rest.split_once(place).expect("the template has each place, in this order");
        page.push_str(before);
        page.push_str(&in_script(&json));
        rest = after;
    }
    page + rest
}

/// JSON that may stand in a `script` element: neither its end nor a comment can begin in it.
fn in_script(json: &str) -> String {
    // In JSON there is none but in strings.
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::super::timeline::Recorder;
    use super::*;
    use kvlease::Timestamp;
    use std::fs;
    use std::time::Duration;

    const NASTY: &str = "</script><!--\"'&\\ {{timeline}} {{tables}} \u{2028} pré😀<b>";

    /// The JSON in a block of the page.
    fn block(page: &str, id: &str) -> serde_json::Value {
        let begin = format!("<script type=\"application/json\" id=\"{id}\">");
        let (_, rest) = page.split_once(&begin).unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn names_that_look_like_markup_or_places_break_nothing() {
        let recorder = Recorder::default();
        recorder.tracking(NASTY, 1, Timestamp::ZERO);
        let report = serde_json::json!({ "arrivals": NASTY });
        let page = render(&report.to_string(), &recorder.timeline(Duration::ZERO));
        assert_eq!(block(&page, "report"), report);
        assert_eq!(block(&page, "timeline")["leases"][0]["id"], NASTY);
        assert_eq!(block(&page, "tables")["leases"][0]["name"], "requests");
        // As much markup as without them.
        let plain = render("{}", &Recorder::default().timeline(Duration::ZERO));
        assert_eq!(page.matches('<').count(), plain.matches('<').count());
    }

    #[test]
    fn a_page_takes_its_place_when_it_is_written_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        fs::write(&path, "old").unwrap();
        let timeline = Recorder::default().timeline(Duration::ZERO);
        drop(Page::create(&path).unwrap());
        let page = Page::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        page.write("{}", &timeline).unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with("<!doctype html>"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cannot = |path: PathBuf| Page::create(&path).err().unwrap();
        assert!(cannot(folder.path().to_owned()).ends_with("something that is not a file"));
        assert!(cannot(PathBuf::from("/dev/null")).ends_with("something that is not a file"));
        assert!(cannot(folder.path().join("no/page.html")).contains("cannot write the report "));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
