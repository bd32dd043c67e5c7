//! `tidegate import nginx|envoy|haproxy LOG`

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::ValueEnum;
use http::{HeaderMap, Method};
use tidegate_proxy::File;

use super::file;
use super::{Error, print};

/// Make a record for `tidegate sim replay` and `tidegate limit size` of an access log that is there already.
#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    /// Whose log it is.
    #[arg(value_enum)]
    format: Format,
    /// The log; `-` reads stdin.
    log: PathBuf,
    /// A configuration whose rules give workflows and ranks by method, path and address.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Logs that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// `combined` with ` $request_time`, or ` $msec $request_time`, at its end.
    Nginx,
    /// Its default format.
    Envoy,
    /// Its HTTP format, with or without a prefix of syslog.
    Haproxy,
}

/// A request as a log tells it.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    /// When it came, in microseconds since 1970.
    at: i64,
    /// Whether that is known to the second only.
    coarse: bool,
    method: String,
    path: String,
    peer: IpAddr,
    /// How long its service took, in microseconds.
    service: i64,
}

impl Import {
    pub(crate) fn run(self) -> Result<(), Error> {
        let rules = match &self.config {
            None => File::default(),
            Some(path) => {
                let wrong =
                    |error| Error::Input(format!("{} is not valid\n{error}", file::name(path)));
                File::parse(&file::text(path)?).map_err(wrong)?
            }
        };
        let text = file::log(&self.log)?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let all = lines.clone().count();
        let mut entries: Vec<Entry> = lines.filter_map(|line| self.format.read(line)).collect();
        let name = file::name(&self.log);
        if entries.is_empty() {
            let format = self
                .format
                .to_possible_value()
                .map_or_else(String::new, |it| it.get_name().to_owned());
            let problem = format!(
                "{name}: none of {all} lines is one of {format} with the times that are needed (docs/logs.md)"
            );
            return Err(Error::Input(problem));
        }
        if entries.len() < all {
            eprintln!(
                "{} of {all} lines say nothing of use, and are left out",
                all - entries.len()
            );
        }
        spread(&mut entries);
        print(record(&entries, &rules))
    }
}

/// Requests that are known to the second only come evenly within it.
fn spread(entries: &mut [Entry]) {
    entries.sort_by_key(|entry| entry.at);
    for second in
        entries.chunk_by_mut(|one, other| one.coarse && other.coarse && one.at == other.at)
    {
        let gap = 1_000_000 / second.len() as i64;
        for (n, entry) in second.iter_mut().enumerate().filter(|(_, entry)| entry.coarse) {
            entry.at += n as i64 * gap;
        }
    }
}

/// As the simulator reads it.
fn record(entries: &[Entry], file: &File) -> String {
    let begun = entries.iter().map(|entry| entry.at).min().unwrap_or(0);
    let mut text = "timestamp,workflow,business,user,service\n".to_owned();
    for Entry { at, method, path, peer, service, .. } in entries {
        let method = method.parse().unwrap_or(Method::GET);
        let rules = &file.proxy.rules;
        let rule = rules.iter().find(|rule| rule.fits(&method, path, &HeaderMap::new(), *peer));
        let without = if rules.is_empty() { "" } else { "63" }.to_owned();
        let business = rule.map_or(without, |rule| rule.business.to_string());
        let workflow = rule.and_then(|rule| rule.workflow.as_deref()).unwrap_or_default();
        let seconds = (at - begun) as f64 / 1e6;
        text.push_str(&format!("{seconds:.6},{workflow},{business},,{service}\n"));
    }
    text
}

impl Format {
    /// None for a line that is none, or that lacks a time.
    fn read(self, line: &str) -> Option<Entry> {
        match self {
            Self::Nginx => nginx(line),
            Self::Envoy => envoy(line),
            Self::Haproxy => haproxy(line),
        }
    }
}

fn nginx(line: &str) -> Option<Entry> {
    let (before, rest) = line.split_once('[')?;
    let (date, rest) = rest.split_once(']')?;
    let (method, path, rest) = request(rest)?;
    let mut last = rest.rsplit('"').next()?.split_whitespace().rev();
    let taken = micros(last.next()?)?;
    // Written when the request has ended, as it says with or without thousandths.
    let exact = last.next().and_then(micros);
    let ended = exact.or_else(|| clf(date))?;
    let peer = before.split_whitespace().next().and_then(|it| it.parse().ok());
    let at = ended.checked_sub(taken)?;
    let (at, coarse) =
        if exact.is_some() { (at, false) } else { (at / 1_000_000 * 1_000_000, true) };
    Some(Entry { at, coarse, method, path, peer: peer.unwrap_or(NOBODY), service: taken })
}

fn envoy(line: &str) -> Option<Entry> {
    let (_, rest) = line.split_once('[')?;
    let (date, rest) = rest.split_once(']')?;
    let at = rfc3339(date)?;
    let (method, path, rest) = request(rest)?;
    // What is not quoted, and ends with bytes received, bytes sent, duration, and time of the upstream: whatever stands before.
    let numbers = rest.split('"').step_by(2).find_map(|part| {
        let mut words = part.split_whitespace().rev();
        let [upstream, duration, sent, received] = [(); 4].map(|()| words.next());
        let is_number = |word: Option<&str>| word.is_some_and(|it| it.parse::<u64>().is_ok());
        let fits = is_number(sent) && is_number(received) && is_number(duration);
        fits.then_some((upstream?, duration?))
    });
    let (upstream, duration) = numbers?;
    let millis: i64 = upstream.parse().or_else(|_| duration.parse()).ok()?;
    let service = millis.checked_mul(1000)?;
    Some(Entry { at, coarse: false, method, path, peer: NOBODY, service })
}

fn haproxy(line: &str) -> Option<Entry> {
    // The process number of syslog stands in brackets too.
    let mut dates = line.match_indices('[').filter_map(|(at, _)| {
        let (date, rest) = line[at + 1..].split_once(']')?;
        Some((clf(date)?, &line[..at], rest))
    });
    let (accepted, before, rest) = dates.next()?;
    let timers = rest.split_whitespace().find(|word| word.matches('/').count() == 4)?;
    let times: Vec<i64> = timers
        .split('/')
        .map(|time| time.trim_start_matches('+').parse().ok())
        .collect::<Option<_>>()?;
    let [asked, _, _, answered, _] = times[..] else { return None };
    if asked < 0 || answered < 0 {
        // No request, or no answer to it.
        return None;
    }
    let quoted = rest.find('"').map(|at| &rest[at..])?;
    let (method, path, _) = request(quoted)?;
    let peer = before.split_whitespace().last().and_then(|it| it.rsplit_once(':'));
    let peer = peer.and_then(|(address, _)| address.parse().ok()).unwrap_or(NOBODY);
    let at = accepted.checked_add(asked.checked_mul(1000)?)?;
    Some(Entry { at, coarse: false, method, path, peer, service: answered.checked_mul(1000)? })
}

/// Who is not named.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Method and path of the request that is quoted first, and what follows.
fn request(text: &str) -> Option<(String, String, &str)> {
    let (_, quoted) = text.split_once('"')?;
    let (line, rest) = quoted.split_once('"')?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let path = path.split('?').next().unwrap_or_default();
    path.starts_with('/').then(|| (method.to_owned(), path.to_owned(), rest))
}

/// Seconds with a fraction as microseconds.
fn micros(text: &str) -> Option<i64> {
    let seconds: f64 = text.parse().ok()?;
    (0.0..1e12).contains(&seconds).then(|| (seconds * 1e6).round() as i64)
}

/// `10/Oct/2000:13:55:36 -0700`, or `06/Feb/2009:12:14:14.655`.
fn clf(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (time, zone) = text.split_once(' ').unwrap_or((text, "+0000"));
    let (date, clock) = time.split_once(':')?;
    let [day, month, year] = parts(date, '/')?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let ahead: i64 = zone.parse().ok().filter(|ahead| (-2400..=2400).contains(ahead))?;
    let ahead = (ahead / 100 * 60 + ahead % 100) * 60_000_000;
    Some(moment(year.parse().ok()?, month, day.parse().ok()?, clock)? - ahead)
}

/// `2016-04-15T20:17:00.310Z`.
fn rfc3339(text: &str) -> Option<i64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = parts(date, '-')?;
    moment(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?, clock)
}

fn parts(text: &str, by: char) -> Option<[&str; 3]> {
    let parts: Vec<&str> = text.split(by).collect();
    parts.try_into().ok()
}

/// Microseconds since 1970 of a date of the Gregorian calendar.
fn moment(year: i64, month: i64, day: i64, clock: &str) -> Option<i64> {
    let [hours, minutes, seconds] = parts(clock, ':')?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let fine =
        (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !fine || !(0..24).contains(&hours) || !(0..60).contains(&minutes) {
        return None;
    }
    // Years begin in March, so that the leap day comes last; 719,468 days from 1 March of the year 0.
    let year = if month <= 2 { year - 1 } else { year };
    let leap = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = 365 * year + leap + (153 * ((month + 9) % 12) + 2) / 5 + day - 1 - 719_468;
    let seconds = micros(seconds).filter(|it| *it <= 60_999_999)?;
    Some((days * 86_400 + hours * 3600 + minutes * 60) * 1_000_000 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NGINX: &str = "10.1.2.3 - ann [09/Nov/2001:05:20:00 +0330] \"GET /pay?x=1 HTTP/1.1\" 200 12 \"-\" \"curl/8 [a] b\" 0.250";
    const ENVOY: &str = "[2016-04-15T20:17:00.310Z] \"POST /api/v1/locations HTTP/2\" 204 - 154 0 226 100 \"10.0.35.28\" \"ns\" \"cc21\" \"locations\" \"tcp://10.0.2.1:80\"";
    const ENVOY_NOW: &str = "[2024-02-29T12:00:00.000Z] \"GET /a HTTP/1.1\" 503 UF upstream_reset - \"delayed connect error: 111\" 0 145 7 - \"-\" \"curl\" \"id\" \"host\" \"-\"";
    const HAPROXY: &str = "Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} \"GET /index.html HTTP/1.1\"";

    #[test]
    fn logs_are_read_as_their_servers_write_them() {
        let nginx = nginx(NGINX).expect("a line");
        assert_eq!((nginx.method.as_str(), nginx.path.as_str()), ("GET", "/pay"));
        // 2001-11-09T01:50:00Z, of which the request took a quarter of a second.
        assert_eq!((nginx.at, nginx.coarse, nginx.service), (1_005_270_599_000_000, true, 250_000));
        assert_eq!(nginx.peer, IpAddr::from([10, 1, 2, 3]));
        let exact = NGINX.replace("0.250", "1005270600.500 0.250");
        let exact = super::nginx(&exact).expect("a line");
        assert_eq!((exact.at, exact.coarse), (1_005_270_600_250_000, false));
        let envoy = super::envoy(ENVOY).expect("a line");
        assert_eq!((envoy.at, envoy.service), (1_460_751_420_310_000, 100_000));
        let now = super::envoy(ENVOY_NOW).expect("a line");
        assert_eq!((now.at, now.service), (1_709_208_000_000_000, 7_000));
        let haproxy = super::haproxy(HAPROXY).expect("a line");
        assert_eq!((haproxy.at, haproxy.service), (1_233_922_454_665_000, 69_000));
        assert_eq!((haproxy.path.as_str(), haproxy.peer), ("/index.html", [10, 0, 1, 2].into()));
    }

    #[test]
    fn rules_rank_and_coarse_times_are_spread() {
        let mut entries = vec![nginx(NGINX).expect("a line"); 4];
        spread(&mut entries);
        let file = "[[proxy.rules]]\npath = '/pay'\npeer = '10.0.0.0/8'\nbusiness = 5\nworkflow = 'gold'\n";
        let file = File::parse(file).expect("valid");
        let text = record(&entries, &file);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows[0], "0.000000,gold,5,,250000");
        assert_eq!(rows[3], "0.750000,gold,5,,250000");
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read_or_left_out(line in ".*", cut in 0..200usize) {
            for format in [Format::Nginx, Format::Envoy, Format::Haproxy] {
                let _ = format.read(&line);
                for known in [NGINX, ENVOY, ENVOY_NOW, HAPROXY] {
                    let at = cut.min(known.len());
                    let _ = format.read(&format!("{}{line}{}", &known[..at], &known[at..]));
                }
            }
        }
    }
}
