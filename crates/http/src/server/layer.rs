//! [`GateLayer`]: configuration.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;
use tidegate_core::Span;
use tidegate_core::entry::{Entry, EntryConfig};
use tidegate_core::gate::GateConfig;
use tidegate_core::slots::{AdaptiveConfig, SlotsConfig};
use tidegate_driver::{SharedGate, random_seed};
use tower_layer::Layer;

use super::arrival::{Counts, Head, Trust, Vouched};
use super::exempt::Places;
use super::machine::Sampler;
use super::meter::Meter;
use super::rule::Rule;
use super::service::GateService;
use super::streams::Streams;
use crate::identity::EXEMPT;
use crate::wire::Names;

/// Puts a gate before a service. Services made by one layer share the gate.
///
/// Without further words it is an edge: it believes nobody, and assigns ranks itself.
#[derive(Clone)]
pub struct GateLayer {
    pub(super) gate: SharedGate,
    pub(super) patience: Option<Span>,
    pub(super) trust: Trust,
    pub(super) entry: Entry,
    pub(super) action: Option<Arc<ActionOf>>,
    pub(super) user_header: Option<HeaderName>,
    pub(super) credentials: bool,
    pub(super) limit_header: Option<HeaderName>,
    pub(super) vouch: Option<Arc<VouchOf>>,
    pub(super) workflow: Option<Arc<WorkflowOf>>,
    pub(super) rules: Arc<[Rule]>,
    pub(super) exempt: Vec<Cow<'static, str>>,
    pub(super) places: Arc<Places>,
    pub(super) names: Names,
    pub(crate) streams: Arc<Streams>,
    pub(super) counts: Arc<Counts>,
    /// None: to those that are trusted.
    pub(super) report_load: Option<bool>,
    pub(super) meter: Arc<Meter>,
    pub(super) sampler: Arc<Sampler>,
}

/// Names the action that a request asks for.
pub(super) type ActionOf = dyn Fn(&Head<'_>) -> String + Send + Sync;

/// Names the workflow of a request.
pub(super) type WorkflowOf = dyn Fn(&Head<'_>) -> Option<String> + Send + Sync;

/// Says who the peer of a request is.
pub(super) type VouchOf = dyn Fn(&Head<'_>) -> Vouched + Send + Sync;

impl GateLayer {
    /// A layer that asks `gate`.
    pub fn new(gate: SharedGate) -> Self {
        let layer = Self {
            gate,
            patience: None,
            trust: Trust::Edge,
            entry: Entry::new(&EntryConfig::default(), random_secret()),
            action: None,
            user_header: None,
            credentials: false,
            limit_header: None,
            vouch: None,
            workflow: None,
            rules: Arc::new([]),
            exempt: EXEMPT.map(Cow::Borrowed).to_vec(),
            places: Places::new(Places::DEFAULT),
            names: Names::process(),
            streams: Arc::default(),
            counts: Arc::default(),
            report_load: None,
            meter: Meter::process(),
            sampler: Arc::default(),
        };
        layer.tell_names();
        layer
    }

    /// Tells the gate the numbers of the workflows that its configuration names. The layer does so when it is
    /// made; due again after a change of the gate's configuration.
    pub fn tell_names(&self) {
        self.gate.input(|gate, _| gate.name_workflows(|name| self.names.number(name)));
    }

    /// Gives every request a deadline at most so long after its arrival. Without, the gate's policy
    /// and the caller's own deadline bound the wait.
    #[must_use]
    pub fn patience(mut self, patience: Span) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Whose contexts are believed. Default: nobody's.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Who assigns ranks to requests that have none. All replicas of a service must have the same
    /// secret, or a user would be served by one and refused by the next. Default: no table of
    /// actions and a secret of this process's own.
    #[must_use]
    pub fn entry(mut self, entry: Entry) -> Self {
        self.entry = entry;
        self
    }

    /// How a request's action is called in the entry's table. Default: `METHOD /path`.
    #[must_use]
    pub fn action(mut self, of: impl Fn(&Head<'_>) -> String + Send + Sync + 'static) -> Self {
        self.action = Some(Arc::new(of));
        self
    }

    /// Takes the user from this header, which something before us has verified: who may choose it
    /// freely may try names until one has a good rank.
    #[must_use]
    pub fn user_header(mut self, name: HeaderName) -> Self {
        self.user_header = Some(name);
        self
    }

    /// Takes credentials (`Authorization`) and session cookies for users, as something before us has
    /// verified them. Without it a user is whom [`user_header`](Self::user_header) names, or else an address: whoever may
    /// make tokens up tries until one has a good rank.
    #[must_use]
    pub fn verified_credentials(mut self) -> Self {
        self.credentials = true;
        self
    }

    /// Names the workflow of a request that comes without a context, such as its tenant or its route: what quotas, trees,
    /// turns (`drr`) and limits of each workflow go by. At an edge that is every request. Names that are longer than 64 bytes are
    /// none. Default: none.
    ///
    /// ```
    /// # use tidegate_http::GateLayer;
    /// let layer = GateLayer::default().workflow(|head| match head.uri.path() {
    ///     path if path.starts_with("/checkout") => Some("checkout".to_owned()),
    ///     // Only where something before us has verified it.
    ///     _ => head.headers.get("x-tenant")?.to_str().ok().map(str::to_owned),
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn workflow(
        mut self,
        of: impl Fn(&Head<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.workflow = Some(Arc::new(of));
        self
    }

    /// The header that limits with `each = "header"` go by, say the key of an API. Nothing needs to have verified it: who
    /// changes it often has the buckets of nobody in particular.
    #[must_use]
    pub fn limit_header(mut self, name: HeaderName) -> Self {
        self.limit_header = Some(name);
        self
    }

    /// Says who the peer of a request is, where more than its address is known. What a peer says of the requests it shed
    /// itself is believed as far as it was seen to have the demand; a gateway that speaks for many is
    /// believed all of it. Default: the address.
    #[must_use]
    pub fn vouch(mut self, who: impl Fn(&Head<'_>) -> Vouched + Send + Sync + 'static) -> Self {
        self.vouch = Some(Arc::new(who));
        self
    }

    /// Says what is important, and what is one workflow: of the rules the first that fits a request decides, for requests
    /// that come without a context. What fits none is refused first, unless the entry's table knows its action. A rule
    /// without a workflow leaves it to [`workflow`](Self::workflow). Default: none, and all have the same business rank.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules = rules.into_iter().collect();
        self
    }

    /// Serves requests for this path without asking the gate. A path that ends in `/` stands for all
    /// below it. Health checks are exempt already. However many ask, [`exempt_at_once`](Self::exempt_at_once) are served so.
    #[must_use]
    pub fn exempt(mut self, path: impl Into<Cow<'static, str>>) -> Self {
        self.exempt.push(path.into());
        self
    }

    /// Most requests for exempt paths at once beside the gate, of which an address has a quarter; the gate is asked about
    /// further ones. Each may run beside all slots. Default 8, as in the sidecar.
    #[must_use]
    pub fn exempt_at_once(mut self, most: usize) -> Self {
        self.places = Places::new(most);
        self
    }

    /// When a response whose body goes on counts as a stream and gives its slot back: so long after
    /// its body was first asked for. Longer lets slow readers shrink the gate; shorter lets more run
    /// at once than there are slots. Default 1 s.
    #[must_use]
    pub fn stream_after(mut self, after: Span) -> Self {
        Arc::make_mut(&mut self.streams).after = after.max(Span::from_millis(1));
        self
    }

    /// How many streams there may be; further ones keep their slots. A bound on memory. Default
    /// 16,384.
    #[must_use]
    pub fn stream_limit(mut self, limit: usize) -> Self {
        Arc::make_mut(&mut self.streams).limit = limit;
        self
    }

    /// The table of workflow names to use. Default: that of the process.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = names;
        self.tell_names();
        self
    }

    /// Whether answers say how busy this service is, in the words of ORCA, for balancers that never
    /// heard of us. Default: those to trusted peers do; strangers are not told.
    #[must_use]
    pub fn report_load(mut self, report: bool) -> Self {
        self.report_load = Some(report);
        self
    }

    /// What turns time in handlers into CPU time. Default: that of the process.
    #[must_use]
    pub fn meter(mut self, meter: Arc<Meter>) -> Self {
        self.meter = meter;
        self
    }

    /// Tells `hear` once of each signal of the machine that is off, and why. Default: stderr.
    #[must_use]
    pub fn on_warning(mut self, hear: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.sampler = Arc::new(Sampler { warn: Some(Arc::new(hear)), ..Sampler::default() });
        self
    }

    /// The gate it asks.
    pub fn gate(&self) -> &SharedGate {
        &self.gate
    }

    /// Responses that are streams now.
    pub fn streams(&self) -> usize {
        self.streams.open()
    }

    /// How many contexts could not be read, and were ignored.
    pub fn malformed(&self) -> u64 {
        self.counts.malformed()
    }
}

impl Default for GateLayer {
    /// A layer with a gate of its own that needs no configuration: policy tide, the objective learned,
    /// the number of slots found by trial.
    fn default() -> Self {
        let slots = SlotsConfig::Adaptive(AdaptiveConfig::default());
        let config = GateConfig { slots, ..GateConfig::default() };
        Self::new(SharedGate::build(&config).expect("defaults are valid"))
    }
}

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer")
            .field("gate", &self.gate)
            .field("trust", &self.trust)
            .field("patience", &self.patience)
            .field("exempt", &self.exempt)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> GateService<S> {
        GateService { inner, layer: Arc::new(self.clone()) }
    }
}

fn random_secret() -> [u8; 16] {
    let mut secret = [0; 16];
    for half in secret.chunks_exact_mut(8) {
        half.copy_from_slice(&random_seed().to_le_bytes());
    }
    secret
}
