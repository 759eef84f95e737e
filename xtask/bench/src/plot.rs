// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench plot`: draws the documentation's pictures from figures in the repository.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

use super::burst::report::Report as Bursts;
use super::output::read;
use super::report::{Report as Control, Row};
use super::traffic::figures::{Line, Report as Traffic};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::workspace;

/// Draw ADD and DEL by the number of pods, their latencies in a burst, and packets by the number of ports, as SVG.
#[derive(Debug, clap::Args)]
pub(crate) struct PlotArgs {
    /// The directory with the figures, as `--save` writes them; what is missing is not drawn
    #[arg(long, value_name = "DIR", default_value = "docs/data")]
    data: PathBuf,
    /// The directory for the pictures
    #[arg(long, value_name = "DIR", default_value = "docs/images")]
    out: PathBuf,
}

/// One panel of a picture.
struct Panel<'a> {
    title: &'a str,
    x: &'a str,
    lines: &'a [Line],
}

pub(super) fn run(args: &PlotArgs) -> Result<()> {
    for (name, picture) in pictures(&workspace::root().join(&args.data))? {
        write(&args.out.join(name), &picture)?;
    }
    Ok(())
}

/// The pictures of the figures in a directory, by the names of their files.
fn pictures(data: &Path) -> Result<Vec<(&'static str, String)>> {
    let find = |names: &[&str]| names.iter().map(|name| data.join(name)).find(|file| file.exists());
    let mut pictures = Vec::new();
    if let Some(file) = find(&["control.json"]) {
        pictures.push(("control.svg", draw(&read(&file)?)?));
    }
    // docs/data has bursts of several sizes; `--save` names each burst.json.
    if let Some(file) = find(&["burst-100.json", "burst.json"]) {
        pictures.push(("burst.svg", draw_burst(&read(&file)?)?));
    }
    if let Some(file) = find(&["traffic.json"]) {
        pictures.push(("traffic.svg", draw_traffic(&read(&file)?)?));
    }
    if pictures.is_empty() {
        return Err(Error::Failed(format!(
            "{} has no figures: control.json, burst.json or traffic.json",
            data.display()
        )));
    }
    Ok(pictures)
}

fn write(out: &Path, picture: &str) -> Result<()> {
    let out = workspace::root().join(out);
    if let Some(dir) = out.parent() {
        files::create_dir(dir)?;
    }
    files::write(&out, picture)?;
    println!("{}", out.display());
    Ok(())
}

fn draw_traffic(report: &Traffic) -> Result<String> {
    let (mut picture, plots) = (String::new(), report.plots());
    {
        let width = 400 * u32::try_from(plots.len().max(1)).unwrap_or(1);
        let area = SVGBackend::with_string(&mut picture, (width, 400)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        for (area, (title, lines)) in area.split_evenly((1, plots.len().max(1))).iter().zip(&plots) {
            panel(area, &Panel { title, x: "published ports", lines })?;
        }
        area.present().map_err(failed)?;
    }
    Ok(picture)
}

fn draw(data: &Control) -> Result<String> {
    let of = "ms (median, 95th percentile)";
    draw_verbs(of, "pods present", &[adds(data), dels(data)])
}

/// The latencies with the fewest pods present.
fn draw_burst(data: &Bursts) -> Result<String> {
    let fewest = data.rows.iter().map(|row| row.pods).min();
    let (mut adds, mut dels): (Vec<Line>, Vec<Line>) = (Vec::new(), Vec::new());
    for row in data.rows.iter().filter(|row| Some(row.pods) == fewest) {
        for (lines, of) in [(&mut adds, &row.add), (&mut dels, &row.del)] {
            let points = [(50, of.p50_ms), (95, of.p95_ms), (99, of.p99_ms), (100, of.slowest_ms)];
            lines.push((name(&row.contender), points.map(|(percent, ms)| (percent, ms, ms)).to_vec()));
        }
    }
    draw_verbs("ms", "percentile", &[adds, dels])
}

/// A panel for ADD and one for DEL.
fn draw_verbs(of: &str, x: &str, lines: &[Vec<Line>; 2]) -> Result<String> {
    let mut picture = String::new();
    {
        let area = SVGBackend::with_string(&mut picture, (960, 400)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (left, right) = area.split_horizontally(480);
        for ((area, verb), lines) in [(left, "ADD"), (right, "DEL")].into_iter().zip(lines) {
            panel(&area, &Panel { title: &format!("{verb}, {of}"), x, lines })?;
        }
        area.present().map_err(failed)?;
    }
    Ok(picture)
}

/// A contender's name for readers.
fn name(contender: &str) -> String {
    contender.replace("peer-", "reference, ")
}

fn lines(data: &Control, of: impl Fn(&Row) -> (f64, f64)) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &data.rows {
        let (p50, p95) = of(row);
        let point = (row.pods, p50, p95);
        let contender = name(&row.contender);
        match lines.iter_mut().find(|(name, _)| *name == contender) {
            Some((_, points)) => points.push(point),
            None => lines.push((contender, vec![point])),
        }
    }
    lines
}

fn adds(data: &Control) -> Vec<Line> {
    lines(data, |row| (row.add_p50_ms, row.add_p95_ms))
}

fn dels(data: &Control) -> Vec<Line> {
    let floor = data.floor.iter().map(|floor| (floor.pods, floor.sum_p50_ms, floor.sum_p95_ms)).collect();
    let mut lines = lines(data, |row| (row.del_p50_ms, row.del_p95_ms));
    lines.push(("the kernel's floor".to_owned(), floor));
    lines
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("draw: {error}"))
}

fn panel(area: &DrawingArea<SVGBackend<'_>, Shift>, of: &Panel<'_>) -> Result<()> {
    let Panel { title, x, lines } = *of;
    let mut pods: Vec<u32> = lines.iter().flat_map(|(_, points)| points.iter().map(|(n, ..)| *n)).collect();
    pods.sort_unstable();
    pods.dedup();
    // Equal distances between the numbers of pods: 0 has no place on a logarithmic axis.
    let place = |n: u32| pods.iter().position(|other| *other == n).map_or(0.0, to_float);
    let last = to_float(pods.len().saturating_sub(1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(45)
        .build_cartesian_2d(-0.3..last + 0.3, range(lines).log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(x)
        .set_tick_mark_size(LabelAreaPosition::Bottom, 0)
        .x_labels(pods.len() * 10)
        .x_label_formatter(&|x| {
            pods.iter()
                .enumerate()
                .find(|(i, _)| (to_float(*i) - x).abs() < 0.01)
                .map_or_else(String::new, |(_, n)| n.to_string())
        })
        .y_label_formatter(&|y| format!("{y}"))
        .draw()
        .map_err(failed)?;
    for (i, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let at = |p: &(u32, f64, f64)| (place(p.0), p.1);
        chart
            .draw_series(LineSeries::new(points.iter().map(at), color.stroke_width(2)))
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        chart.draw_series(points.iter().map(|p| Circle::new(at(p), 3, color.filled()))).map_err(failed)?;
        chart
            .draw_series(points.iter().map(|p| PathElement::new([at(p), (place(p.0), p.2)], color)))
            .map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()
        .map_err(failed)?;
    Ok(())
}

/// From below the smallest figure to above the largest one.
fn range(lines: &[Line]) -> Range<f64> {
    let all = || lines.iter().flat_map(|(_, points)| points.iter().flat_map(|(_, p50, p95)| [*p50, *p95]));
    all().fold(f64::INFINITY, f64::min) * 0.8..all().fold(0.0, f64::max) * 3.0
}

fn to_float(n: usize) -> f64 {
    u32::try_from(n).map_or(0.0, f64::from)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::burst::report::{Figures, Row as BurstRow};
    use crate::report::FloorRow;

    #[test]
    fn every_contender_is_a_line_of_both_panels() {
        let row = |contender: &str, pods| Row {
            contender: contender.to_owned(),
            pods,
            add_p50_ms: 10.0,
            add_p95_ms: 12.0,
            del_p50_ms: 40.0,
            del_p95_ms: 50.0,
            ..Row::default()
        };
        let rows = vec![row("one", 0), row("two", 0), row("one", 100), row("two", 100)];
        let floor = vec![FloorRow { sum_p50_ms: 30.0, sum_p95_ms: 33.0, ..FloorRow::default() }];
        let data = Control { rows, floor, ..Control::default() };
        assert_eq!(adds(&data).iter().map(|(_, points)| points.len()).collect::<Vec<_>>(), [2, 2]);
        let picture = draw(&data).unwrap();
        for word in ["one", "two", "the kernel&apos;s floor", ">100<"] {
            assert!(picture.replace('\n', "").contains(word), "{word}: {picture}");
        }
    }

    #[test]
    fn the_documentations_pictures_are_of_its_data() {
        let docs = workspace::root().join("docs");
        let pictures = pictures(&docs.join("data")).unwrap();
        assert_eq!(pictures.len(), 3);
        for (name, picture) in pictures {
            let kept = fs::read_to_string(docs.join("images").join(name)).unwrap();
            assert!(kept == picture, "{name} is of other figures: run `cargo xtask bench plot`");
        }
    }

    #[test]
    fn only_the_figures_that_are_in_the_directory_are_drawn() {
        let dir = std::env::temp_dir().join(format!("slipway-plot-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let error = pictures(&dir).unwrap_err().to_string();
        fs::copy(workspace::root().join("docs/data/burst-100.json"), dir.join("burst.json")).unwrap();
        let drawn = pictures(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.contains("has no figures: control.json, burst.json or traffic.json"), "{error}");
        let names: Vec<_> = drawn.unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["burst.svg"]);
    }

    #[test]
    fn a_burst_is_drawn_with_the_fewest_pods() {
        let of = |ms: f64| Figures {
            p50_ms: ms,
            p95_ms: 2.0 * ms,
            p99_ms: 3.0 * ms,
            slowest_ms: 4.0 * ms,
            ..Figures::default()
        };
        let row = |contender: &str, pods| BurstRow {
            contender: contender.to_owned(),
            pods,
            add: of(10.0),
            del: of(20.0),
            ..BurstRow::default()
        };
        let rows = vec![row("one", 0), row("peer-two", 0), row("three", 1000)];
        let picture = draw_burst(&Bursts { rows, ..Bursts::default() }).unwrap().replace('\n', "");
        for word in ["one", "reference, two", ">99<", "percentile"] {
            assert!(picture.contains(word), "{word}: {picture}");
        }
        assert!(!picture.contains("three"), "{picture}");
    }
}
