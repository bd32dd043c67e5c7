//! What would happen to a request that arrived now, why, and what would change it.
//!
//! A copy of the gate is asked, so nothing is consumed. The request may be told as it comes (method, path, headers, address), and then
//! has the rule, the rank and the workflow that it would have, or by its rank.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderName, HeaderValue, Request};
use serde_json::{Value, json};
use tidegate_core::gate::Action;
use tidegate_core::limit::{Ask, Limiter};
use tidegate_core::{Context, Cost, Gate, Instant, Rank, Reason, Rejection, Span, Workflow};
use tidegate_driver::context;

use crate::admin::refusal;
use crate::entry::{Client, Known};
use crate::server::Shared;

/// Most requests that are counted as left of a limit.
const MOST_LEFT: u32 = 10_000;

/// The answer to a query such as `method=POST&path=/pay&deadline=50ms`; an error says what is wrong with it.
pub(crate) fn explain(shared: &Shared, query: &str) -> Result<Value, String> {
    let now = shared.gate.now();
    let asked = Asked::read(query, now)?;
    let (context, rule, is_exempt) = asked.context(shared);
    let context = context::draw(context);
    let gate = shared.read(Clone::clone);
    let feedback = gate.clone().feedback(now, context.caller, context.workflow);
    let mut answer = json!({
        "rule": rule,
        "workflow": shared.names.name(context.workflow),
        "rank": [context.rank.business(), context.rank.user()],
        "lot": context.lot,
        "criticality": context.rank.criticality().name(),
        "policy": gate.admission().name(),
        "enforced_percent": shared.sideline.percent().get(),
        "slots": gate.slots(),
        "running": gate.running(),
        "waiting": gate.waiting(),
        "predicted_wait_seconds": gate.backlog().predicted_wait().as_secs_f64(),
        "last_rank_let_in": feedback.last.map(|cursor| cursor.to_string()),
        "limits": limits(&gate, now, &context),
    });
    if is_exempt {
        answer["verdict"] = "pass".into();
        return Ok(answer);
    }
    let verdict = ask(&gate, now, &context);
    match verdict {
        Err(rejection) => {
            answer["verdict"] = "refuse".into();
            answer["refusal"] = refusal(&rejection);
            answer["would_change"] = would_change(&gate, now, &context, &rejection).into();
        }
        Ok(starts) => answer["verdict"] = if starts { "start" } else { "wait" }.into(),
    }
    Ok(answer)
}

/// Whether a request would start at once, or why it would be refused.
fn ask(gate: &Gate, now: Instant, context: &Context) -> Result<bool, Rejection> {
    let mut gate = gate.clone();
    let id = gate.arrive(now, context)?;
    gate.dispatch(now);
    let mut starts = false;
    while let Some(action) = gate.poll() {
        match action {
            Action::Start { id: started, .. } if started == id => starts = true,
            Action::Refuse { id: refused, rejection } if refused == id => return Err(rejection),
            _ => {}
        }
    }
    Ok(starts)
}

/// How many requests like this one each limit would still let pass now, counted on a copy.
fn limits(gate: &Gate, now: Instant, context: &Context) -> Value {
    let Some(limits) = gate.limits() else { return json!([]) };
    let delay = gate.delay(now);
    let of = |(at, limiter): (usize, &dyn Limiter)| {
        let mut copy = limiter.clone_box();
        let ask = Ask { context, cost: Cost(1), delay };
        let mut left = 0;
        let refusal = loop {
            match copy.on_arrival(now, &ask) {
                Ok(_) if left < MOST_LEFT => left += 1,
                Ok(_) => break None,
                Err(rejection) => break Some(rejection),
            }
        };
        let more = refusal.is_none();
        let then = refusal.map(|it| it.to_string());
        json!({ "which": format!("limits.{at}"), "limit": limiter.name(), "left": left, "or_more": more, "then": then })
    };
    limits.iter().enumerate().map(of).collect()
}

/// What would have to be otherwise for the request to be let in, as far as that can be tried.
fn would_change(gate: &Gate, now: Instant, context: &Context, why: &Rejection) -> Vec<String> {
    let mut list = Vec::new();
    if let Some(which) = why.which() {
        list.push(format!("{which}: another value of it, or waiting until there is room"));
        return list;
    }
    let with =
        |business: u8| Context { rank: Rank::new(business, context.rank.user()), ..*context };
    let better = (0..context.rank.business()).rev();
    match better.into_iter().find(|business| ask(gate, now, &with(*business)).is_ok()) {
        Some(business) => list.push(format!("a business rank of {business} or less")),
        None => list.push("no business rank: the most important would be refused too".to_owned()),
    }
    if matches!(why.reason, Reason::Expired | Reason::Infeasible) {
        list.push("a later deadline".to_owned());
    }
    if gate.running() > 0 {
        list.push(
            "fewer requests inside: more slots, a quicker service, or another replica".to_owned(),
        );
    }
    list
}

/// A request as the query tells it.
#[derive(Debug)]
struct Asked {
    request: Request<()>,
    peer: IpAddr,
    /// Whether it is told as it comes, and not by its rank alone.
    comes: bool,
    business: Option<u8>,
    user: Option<u16>,
    workflow: Option<String>,
    deadline: Instant,
    attempt: u8,
}

impl Asked {
    fn read(query: &str, now: Instant) -> Result<Self, String> {
        let mut asked = Self {
            request: Request::new(()),
            peer: Ipv4Addr::LOCALHOST.into(),
            comes: false,
            business: None,
            user: None,
            workflow: None,
            deadline: Instant::FAR,
            attempt: 0,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value);
            let wrong = |allowed: &str| format!("{key} = {value} is not allowed: {allowed}");
            asked.comes |= matches!(key, "method" | "path" | "header" | "peer");
            match key {
                "method" => {
                    *asked.request.method_mut() =
                        value.parse().map_err(|_| wrong("a method such as POST"))?;
                }
                "path" => {
                    let path = value.starts_with('/').then(|| value.parse().ok()).flatten();
                    *asked.request.uri_mut() =
                        path.ok_or_else(|| wrong("a path such as /checkout"))?;
                }
                "header" => {
                    let (name, said) = value.split_once(':').ok_or_else(|| wrong("name:value"))?;
                    let name =
                        name.trim().parse::<HeaderName>().map_err(|_| wrong("name:value"))?;
                    let said =
                        HeaderValue::from_str(said.trim()).map_err(|_| wrong("name:value"))?;
                    asked.request.headers_mut().append(name, said);
                }
                "peer" => {
                    asked.peer = value.parse().map_err(|_| wrong("an address such as 10.1.2.3"))?;
                }
                "workflow" => asked.workflow = Some(value),
                "business" => {
                    let business = value.parse().ok().filter(|n| *n < Rank::BUSINESS);
                    asked.business = Some(business.ok_or_else(|| wrong("0 to 63"))?);
                }
                "user" => asked.user = Some(value.parse().map_err(|_| wrong("0 to 65535"))?),
                "deadline" => {
                    let span: Span = value.parse().map_err(|_| wrong("a time such as 50ms"))?;
                    asked.deadline = now + span;
                }
                "attempt" => asked.attempt = value.parse().map_err(|_| wrong("0 to 255"))?,
                _ => {
                    let known =
                        "method, path, header, peer, workflow, business, user, deadline, attempt";
                    return Err(wrong(known));
                }
            }
        }
        Ok(asked)
    }

    /// What the gate would be asked, by which rule, and whether it would not be asked.
    fn context(&self, shared: &Shared) -> (Context, Option<String>, bool) {
        let settings = shared.settings();
        let ranks = &settings.ranks;
        let (headers, client) = (self.request.headers(), Client::known(self.peer));
        let rule = ranks.rule(&self.request, self.peer).filter(|_| self.comes);
        let mut context =
            Context { deadline: self.deadline, attempt: self.attempt, ..Context::default() };
        if self.comes {
            context.rank = ranks.stamp(ranks.rank(rule, headers, &client));
            context.sender = ranks.sender(headers, &client, self.peer);
        }
        let told = self.workflow.as_deref().or_else(|| ranks.workflow(rule, headers));
        context.workflow = told.map_or(Workflow::NONE, |name| shared.names.number(name));
        let (business, user) = (context.rank.business(), context.rank.user());
        context.rank = Rank::new(self.business.unwrap_or(business), self.user.unwrap_or(user));
        let title = rule.and_then(|it| shared.titles().name(Workflow(Known::label(it))));
        (context, title, self.comes && ranks.is_exempt(self.request.uri().path()))
    }
}

/// A value of a query: `+` and `%` are taken back, and what is no text is shown as such.
fn decode(value: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value.as_bytes());
    while let [first, after @ ..] = rest {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let escaped = escaped.and_then(|two| std::str::from_utf8(two).ok());
        let escaped = escaped.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(escaped.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_taken_back() {
        for (value, expected) in [
            ("a%2Fb+c", "a/b c"),
            ("%", "%"),
            ("%4", "%4"),
            ("%zz", "%zz"),
            ("100%25", "100%"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(decode(value), expected, "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_turned_down(query in ".*") {
            let _ = Asked::read(&query, Instant::ZERO);
        }

        #[test]
        fn any_value_is_read_or_turned_down(key in "method|path|header|peer|business|user|deadline|attempt|workflow", value in ".*") {
            let _ = Asked::read(&format!("{key}={value}"), Instant::ZERO);
        }
    }
}
