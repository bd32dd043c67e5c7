//! [`Rule`]: which requests have which business rank and workflow.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::{HeaderName, Method};
use tidegate_core::Rank;

use super::arrival::Head;
use crate::path;

/// What a layer says of requests that come without a context. All that is asked has to fit.
///
/// ```
/// # use tidegate_http::GateLayer;
/// # use tidegate_http::server::Rule;
/// # use http::{HeaderName, Method};
/// # #[derive(Clone)] struct MatchedPath(&'static str);
/// let layer = GateLayer::default().rules([
///     Rule::new(3).method(Method::POST).path("/checkout").workflow("checkout"),
///     // Only what something before us has verified: clients can send what they like.
///     Rule::new(20).header(HeaderName::from_static("x-tier"), "gold").workflow("gold"),
///     // What a router has noted in the extensions, such as axum's `MatchedPath`.
///     Rule::new(40).when(|head| {
///         head.extensions.get::<MatchedPath>().is_some_and(|path| path.0 == "/items/{id}")
///     }),
/// ]);
/// # let _ = layer;
/// ```
#[derive(Clone)]
pub struct Rule {
    business: u8,
    workflow: Option<Cow<'static, str>>,
    tests: Vec<Arc<Test>>,
}

type Test = dyn Fn(&Head<'_>) -> bool + Send + Sync;

impl Rule {
    /// A rule that everything fits: business rank 0, refused last, to 63, refused first. More is taken for 63.
    pub fn new(business: u8) -> Self {
        let business = business.min(Rank::BUSINESS - 1);
        Self { business, workflow: None, tests: Vec::new() }
    }

    /// The workflow of what fits, for quotas, turns and limits. Names that are longer than 64 bytes are none.
    #[must_use]
    pub fn workflow(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.workflow = Some(name.into());
        self
    }

    /// Only requests of this method.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        self.when(move |head| *head.method == method)
    }

    /// Only this path and what is below it. A path that servers may read as another is none of those.
    #[must_use]
    pub fn path(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        self.when(move |head| {
            let path = head.uri.path();
            let rest = path.strip_prefix(prefix.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                && path::is_normal(path)
        })
    }

    /// Only with this header saying this.
    #[must_use]
    pub fn header(self, name: HeaderName, value: impl Into<Vec<u8>>) -> Self {
        let value = value.into();
        self.when(move |head| head.headers.get_all(&name).iter().any(|it| it.as_bytes() == value))
    }

    /// Only what passes this test.
    #[must_use]
    pub fn when(mut self, test: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.tests.push(Arc::new(test));
        self
    }

    pub(super) fn fits(&self, head: &Head<'_>) -> bool {
        self.tests.iter().all(|test| test(head))
    }

    pub(super) fn business(&self) -> u8 {
        self.business
    }

    pub(super) fn workflow_name(&self) -> Option<&str> {
        self.workflow.as_deref()
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("business", &self.business)
            .field("workflow", &self.workflow)
            .field("tests", &self.tests.len())
            .finish()
    }
}
