//! Configurations of the others, as their own documentation recommends for a plain reverse proxy
//! with one worker and connections kept alive on both sides.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::process::{Lab, PROXY, Process, free_address, on_core};
use crate::install::Need;
use crate::run::Result;

/// A proxy under comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Nginx,
    Haproxy,
    /// With at most so many requests at the service and a queue that may last so long.
    HaproxyQueue {
        most: u32,
        queue_ms: u32,
    },
    Envoy,
    EnvoyAdaptiveConcurrency,
    EnvoyAdmissionControl,
    /// tower's `load_shed` over a concurrency limit.
    Tower(u32),
    Tidegate,
    /// Told how long an answer may take, or how many requests may be at the service.
    TidegateWith {
        objective_ms: Option<u32>,
        slots: Option<u32>,
    },
}

pub(crate) const NEEDS: &[Need] = &[
    Need { program: "haproxy", package: "haproxy" },
    Need { program: "nginx", package: "nginx-light" },
    Need { program: "wrk", package: "wrk" },
    Need { program: "h2load", package: "nghttp2-client" },
];

impl Peer {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Nginx => "nginx".to_owned(),
            Self::Haproxy => "haproxy".to_owned(),
            Self::HaproxyQueue { most, queue_ms } => {
                format!("haproxy maxconn {most}, queue {queue_ms} ms")
            }
            Self::Envoy => "envoy".to_owned(),
            Self::EnvoyAdaptiveConcurrency => "envoy adaptive concurrency".to_owned(),
            Self::EnvoyAdmissionControl => "envoy admission control".to_owned(),
            Self::Tower(limit) => format!("tower load_shed, limit {limit}"),
            Self::Tidegate => "tidegate".to_owned(),
            Self::TidegateWith { objective_ms, slots } => {
                let objective = objective_ms.map(|ms| format!(", objective {ms} ms"));
                let slots = slots.map(|slots| format!(", {slots} slots"));
                ["tidegate".to_owned()].into_iter().chain(objective).chain(slots).collect()
            }
        }
    }

    fn is_envoy(self) -> bool {
        matches!(self, Self::Envoy | Self::EnvoyAdaptiveConcurrency | Self::EnvoyAdmissionControl)
    }

    /// Starts it before `upstream`, on its core; none if it is not to be had. With `h2` it is told that
    /// its clients speak HTTP/2 from the first byte, where it has to be told.
    pub(crate) fn start(
        self,
        lab: &Lab,
        upstream: SocketAddr,
        h2: bool,
    ) -> Result<Option<(Process, SocketAddr)>> {
        let at = free_address()?;
        let port = at.port();
        let mut command = match self {
            Self::Nginx => {
                let file = lab.file("nginx.conf", &nginx(&lab.scratch, at, upstream, h2))?;
                let mut command = on_core("nginx".as_ref(), PROXY);
                command.arg("-c").arg(file);
                command
            }
            Self::Haproxy | Self::HaproxyQueue { .. } => {
                let file =
                    lab.file(&format!("haproxy-{port}.cfg"), &haproxy(self, at, upstream, h2))?;
                let mut command = on_core("haproxy".as_ref(), PROXY);
                command.arg("-f").arg(file);
                command
            }
            Self::Tower(limit) => {
                let mut command = lab.own("xtask-lab", PROXY);
                let words = [at.to_string(), upstream.to_string(), limit.to_string()];
                command.arg("tower").args(words);
                command
            }
            Self::Tidegate | Self::TidegateWith { .. } => {
                // Nothing else is configured but where to listen. The load says how important requests
                // are, so it is trusted; one thread, since there is one core.
                let (objective, slots) = match self {
                    Self::TidegateWith { objective_ms, slots } => (objective_ms, slots),
                    _ => (None, None),
                };
                let slots = slots.map_or(String::new(), |slots| {
                    format!("[gate.slots]\nslots = \"fixed\"\ncount = {slots}\n")
                });
                let text = format!("[proxy]\nthreads = 1\n{slots}");
                let file = lab.file(&format!("tidegate-{port}.toml"), &text)?;
                let admin = free_address()?.to_string();
                let mut command = lab.own("tidegate", PROXY);
                command.args(["proxy", "--listen", &at.to_string(), "--trust", "inside"]);
                command.args(["--upstream", &format!("http://{upstream}"), "--admin", &admin]);
                command.arg("--config").arg(file);
                if let Some(objective) = objective {
                    command.args(["--objective", &format!("{objective}ms")]);
                }
                command
            }
            _ if self.is_envoy() => {
                let Some(binary) = &lab.envoy else { return Ok(None) };
                envoy_command(lab, binary.clone(), &envoy(self, at, upstream))?
            }
            _ => unreachable!("all peers are listed"),
        };
        Process::start(&mut command, at).map(|process| Some((process, at)))
    }
}

fn nginx(scratch: &std::path::Path, at: SocketAddr, upstream: SocketAddr, h2: bool) -> String {
    let scratch = scratch.display();
    let http2 = if h2 { " http2" } else { "" };
    format!(
        "daemon off;\nworker_processes 1;\npid {scratch}/nginx.pid;\nerror_log {scratch}/nginx.log;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 100000000;\n\
         client_body_temp_path {scratch}/nginx-body;\n  proxy_temp_path {scratch}/nginx-proxy;\n\
         fastcgi_temp_path {scratch}/nginx-fcgi;\n  uwsgi_temp_path {scratch}/nginx-uwsgi;\n\
         scgi_temp_path {scratch}/nginx-scgi;\n\
         upstream service {{ server {upstream}; keepalive 1024; keepalive_requests 100000000; }}\n\
         server {{\n    listen {at}{http2} backlog=4096;\n    location / {{\n\
         proxy_pass http://service;\n      proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\";\n    }}\n  }}\n}}\n"
    )
}

fn haproxy(peer: Peer, at: SocketAddr, upstream: SocketAddr, h2: bool) -> String {
    let proto = if h2 { " proto h2" } else { "" };
    let (queue, server) = match peer {
        Peer::HaproxyQueue { most, queue_ms } => {
            (format!("  timeout queue {queue_ms}ms\n"), format!(" maxconn {most}"))
        }
        _ => (String::new(), String::new()),
    };
    format!(
        "global\n  nbthread 1\n  maxconn 8000\ndefaults\n  mode http\n  timeout connect 5s\n\
         timeout client 60s\n  timeout server 60s\n{queue}  option http-keep-alive\n\
         http-reuse always\nfrontend clients\n  bind {at}{proto} backlog 4096\n\
         default_backend service\nbackend service\n  server one {upstream}{server}\n"
    )
}

fn envoy_command(lab: &Lab, binary: PathBuf, text: &str) -> Result<Command> {
    let file = lab.file("envoy.yaml", text)?;
    let mut command = on_core(&binary, PROXY);
    command.arg("-c").arg(file).args(["--concurrency", "1", "--log-level", "off"]);
    command.args(["--base-id", &std::process::id().to_string(), "--disable-hot-restart"]);
    Ok(command)
}

/// The two filters have the parameters of their documentation's examples.
fn envoy(peer: Peer, at: SocketAddr, upstream: SocketAddr) -> String {
    let filter = match peer {
        Peer::EnvoyAdaptiveConcurrency => {
            "          - name: envoy.filters.http.adaptive_concurrency
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency
              gradient_controller_config:
                sample_aggregate_percentile: { value: 90 }
                concurrency_limit_params: { concurrency_update_interval: 0.1s }
                min_rtt_calc_params: { interval: 60s, request_count: 50, jitter: { value: 10 } }
"
        }
        Peer::EnvoyAdmissionControl => {
            "          - name: envoy.filters.http.admission_control
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.admission_control.v3.AdmissionControl
              enabled: { default_value: true, runtime_key: admission_control.enabled }
              success_criteria: { http_criteria: { http_success_status: [{ start: 100, end: 500 }] } }
              sampling_window: 10s
"
        }
        _ => "",
    };
    // Admission control looks at failures, so the service must fail when it is late.
    let timeout = if peer == Peer::EnvoyAdmissionControl { "0.05s" } else { "15s" };
    let (ip, port) = (at.ip(), at.port());
    let (to_ip, to_port) = (upstream.ip(), upstream.port());
    format!(
        "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: {ip}, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          codec_type: AUTO
          generate_request_id: false
          route_config:
            virtual_hosts:
            - name: all
              domains: [\"*\"]
              routes: [{{ match: {{ prefix: / }}, route: {{ cluster: service, timeout: {timeout} }} }}]
          http_filters:
{filter}          - name: envoy.filters.http.router
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: service
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds: [{{ max_connections: 20000, max_pending_requests: 20000, max_requests: 20000 }}]
    load_assignment:
      cluster_name: service
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: {to_ip}, port_value: {to_port} }} }} }}
"
    )
}
