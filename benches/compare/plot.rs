//! Charts as SVG: bars, a group for each peer.

use crate::report::{Section, short};
use kvlease_bench::slices::cores;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::fs;
use std::path::Path;

/// One chart: a label for each bar of a group, and for each peer its name and bars.
struct Bars {
    file: String,
    title: String,
    labels: Vec<String>,
    groups: Vec<(String, Vec<Option<f64>>)>,
    /// Whether the axis is logarithmic.
    log: bool,
}

/// Draws what this run has measured.
pub fn draw(sections: &[Section], dir: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(dir)?;
    for chart in charts(sections) {
        chart.draw(&dir.join(format!("{}.svg", chart.file)))?;
    }
    Ok(())
}

fn charts(sections: &[Section]) -> Vec<Bars> {
    let mut charts = Vec::new();
    let of = |workload: &'static str| sections.iter().filter(move |section| section.workload == workload);
    let live = |section: &Section| section.case.live.map_or(String::new(), |live| format!("{} live", short(live)));

    for key in ["u64", "id45", "inline45"] {
        let parallel: Vec<_> = of("lifecycle")
            .filter(|section| section.case.threads == Some(cores()) && section.case.batched == Some(false))
            .filter(|section| section.case.key == Some(key) && section.case.consumers == Some(4))
            .collect();
        let title = format!("lifecycle, {key}, {} threads: million calls a second, × std-mutex", cores());
        charts.push(Bars::of(&format!("lifecycle-{key}"), title, false, &parallel, live, |section, peer| {
            Some(section.row(peer)?.over_base?.median)
        }));
    }
    let over: Vec<_> = of("oversubscribed").collect();
    let threads = |section: &Section| format!("{} threads", section.case.threads.unwrap_or(0));
    let title = "oversubscribed: million calls a second".to_owned();
    charts.push(Bars::of("oversubscribed", title, true, &over, threads, |section, peer| section.row(peer)?.median()));

    let growth: Vec<_> = of("growth").collect();
    let title = "growth: the worst insert, µs".to_owned();
    charts.push(Bars::of(
        "growth",
        title,
        true,
        &growth,
        |_| "worst".into(),
        |section, peer| Some(section.row(peer)?.latency?.worst as f64 / 1e3),
    ));

    let idle: Vec<_> = of("sweep").filter(|section| section.case.what.as_deref() == Some("none due")).collect();
    let title = "a sweep that finds nothing due, µs".to_owned();
    charts.push(Bars::of("sweep", title, true, &idle, live, |section, peer| section.row(peer)?.median()));

    let memory: Vec<_> = of("memory")
        .filter(|section| section.case.key == Some("u64") && section.case.live == Some(100_000))
        .filter(|section| section.case.what.as_deref().is_some_and(|what| !what.starts_with("held")))
        .collect();
    let what = |section: &Section| section.case.what.clone().unwrap_or_default();
    let title = "memory, u64, 100k live: bytes for each entry".to_owned();
    charts.push(Bars::of("memory", title, false, &memory, what, |section, peer| section.row(peer)?.median()));

    charts.retain(|chart| !chart.groups.is_empty());
    charts
}

impl Bars {
    fn of(
        file: &str,
        title: String,
        log: bool,
        sections: &[&Section],
        label: impl Fn(&Section) -> String,
        value: impl Fn(&Section, &str) -> Option<f64>,
    ) -> Bars {
        let peers = sections.first().map_or(Vec::new(), |section| section.rows.iter().map(|row| &row.peer).collect());
        let group = |peer: &String| (peer.clone(), sections.iter().map(|section| value(section, peer)).collect());
        let mut groups: Vec<(String, Vec<Option<f64>>)> = peers.into_iter().map(group).collect();
        groups.retain(|(peer, values)| peer != "(harness)" && values.iter().any(Option::is_some));
        let labels = sections.iter().map(|section| label(section)).collect();
        Bars { file: file.to_owned(), title, labels, groups, log }
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        const LEFT: i32 = 150;
        const WIDTH: i32 = 720;
        const BAR: i32 = 11;
        let colours = [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(44, 160, 44), RGBColor(148, 103, 189)];
        let per_group = self.labels.len() as i32;
        let height = 62 + self.groups.len() as i32 * (per_group * BAR + 10);
        let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let text = |size: i32, h, v| ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(h, v));
        area.draw(&Text::new(self.title.as_str(), (10, 8), text(15, HPos::Left, VPos::Top)))?;
        let mut x = LEFT;
        for (label, colour) in self.labels.iter().zip(colours.iter().cycle()) {
            area.draw(&Rectangle::new([(x, 35), (x + 10, 45)], colour.filled()))?;
            area.draw(&Text::new(label.as_str(), (x + 15, 34), text(12, HPos::Left, VPos::Top)))?;
            x += 25 + 7 * label.chars().count() as i32;
        }
        let all = || self.groups.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let most = all().fold(f64::MIN_POSITIVE, f64::max);
        let least = all().filter(|&value| value > 0.0).fold(most, f64::min) / 2.0;
        let share = |value: f64| match self.log {
            true => (value.max(least) / least).ln() / (most / least).ln(),
            false => value / most,
        };
        let mut y = 57;
        for (peer, values) in &self.groups {
            let middle = y + per_group * BAR / 2;
            area.draw(&Text::new(peer.as_str(), (LEFT - 8, middle), text(13, HPos::Right, VPos::Center)))?;
            for (value, colour) in values.iter().zip(colours.iter().cycle()) {
                if let Some(value) = value {
                    let end = LEFT + (share(*value) * f64::from(WIDTH - LEFT - 70)) as i32;
                    area.draw(&Rectangle::new([(LEFT, y), (end.max(LEFT + 1), y + BAR - 2)], colour.filled()))?;
                    let shown = crate::table::number(*value);
                    area.draw(&Text::new(shown, (end + 4, y + BAR / 2 - 1), text(10, HPos::Left, VPos::Center)))?;
                }
                y += BAR;
            }
            y += 10;
        }
        area.present()?;
        Ok(())
    }
}
