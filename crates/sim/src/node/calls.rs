//! The calls a request makes while it is served.
//!
//! A request gives up its slot while it waits for calls. The next stage of calls goes out as soon
//! as the last one is answered; only work after the last stage needs a slot again. When a call
//! fails the request fails, after the other calls of its stage have ended, and its own caller is
//! told not to retry: that is up to the layer right above the refusal, which is this one (unless
//! the service is set to let every layer retry, as a bad example).

use tidegate_core::gate::CalleeId;
use tidegate_core::{Advice, Context, Rejection, RequestId, Span};

use super::{Node, Out};
use crate::client::{Client, End, Ended, NewCall};
use crate::network::MessageId;
use crate::shared::Shared;
use crate::topology::Target;

impl Node {
    /// A request has done its own work and begins to call others.
    pub(super) fn begin_calls(&mut self, shared: &mut Shared, id: RequestId) {
        if !self.spec.blocking {
            self.gate.pause(shared.now(), id);
            self.paused += 1;
        }
        self.news = true;
        self.next_stage(shared, id);
        self.collect(shared);
    }

    /// A message to one of our clients has been received.
    pub(super) fn answered(&mut self, shared: &mut Shared, message: MessageId) {
        let place = (shared.messages.get(message).client - self.first_client) as usize;
        let now = shared.now();
        let client = &mut self.clients[place];
        let callee = CalleeId(client.callee());
        if let Some(feedback) = shared.messages.get(message).feedback() {
            for reply in &shared.messages.get(message).replies {
                if let Some(workflow) = client.workflow_of(reply) {
                    self.gate.on_downstream(now, callee, workflow, &feedback);
                }
            }
        }
        client.receive(shared, message);
        self.collect(shared);
    }

    /// A client's wake-up has come.
    pub(crate) fn wake_client(&mut self, shared: &mut Shared, client: u32) {
        if self.trouble.is_down() {
            return;
        }
        self.clients[(client - self.first_client) as usize].wake(shared);
        self.collect(shared);
        self.use_idle_core(shared);
    }

    /// An attempt of a client may have been under way for too long.
    pub(crate) fn time_out(&mut self, shared: &mut Shared, client: u32, call: RequestId) {
        if self.trouble.is_down() {
            return;
        }
        self.clients[(client - self.first_client) as usize].time_out(shared, call);
        self.collect(shared);
        self.use_idle_core(shared);
    }

    /// Sends what clients want sent and deals with their calls that have ended, until there is
    /// neither.
    fn collect(&mut self, shared: &mut Shared) {
        loop {
            self.outgoing.extend(shared.outgoing.drain(..).map(Out::Call));
            let Some(ended) = shared.ended.pop_front() else { break };
            self.call_ended(shared, &ended);
        }
    }

    fn call_ended(&mut self, shared: &mut Shared, ended: &Ended) {
        let id = ended.call.parent;
        let stage = usize::from(self.jobs[id.index()].stage) - 1;
        let workflow = self.jobs[id.index()].context.workflow;
        let parallel = self.spec.calls_for(workflow)[stage].len() as u32;
        self.gate.on_child(shared.now(), id, &ended.progress, parallel);
        let job = &mut self.jobs[id.index()];
        match ended.end {
            End::Answer => {}
            End::Refuse(rejection) | End::Reject(rejection) => {
                let advice = if self.spec.retry_above { Advice::Elsewhere } else { Advice::Never };
                job.failed = Some(Rejection { advice, ..rejection });
            }
            End::Fail => job.broken = true,
        }
        job.pending -= 1;
        if job.pending > 0 {
            return;
        }
        if job.failed.is_some() || job.broken {
            return self.end_paused(shared, id);
        }
        self.next_stage(shared, id);
    }

    /// All calls so far are answered: makes the next ones, or goes on to the end.
    fn next_stage(&mut self, shared: &mut Shared, id: RequestId) {
        let spec = self.spec.clone();
        let job = &mut self.jobs[id.index()];
        let (context, after) = (job.context, spec.after_for(job.context.workflow));
        match spec.calls_for(context.workflow).get(usize::from(job.stage)) {
            Some(stage) => {
                job.stage += 1;
                job.pending = stage.len() as u32;
                for callee in stage {
                    self.call(shared, id, *callee, &context);
                }
            }
            None if after > Span::ZERO => {
                job.step = after;
                if spec.blocking {
                    self.ready.push_back(id);
                    return;
                }
                self.paused -= 1;
                let progress = self.gate.progress(id).unwrap_or(context.progress);
                self.gate.resume(shared.now(), id, progress);
                self.news = true;
            }
            None => self.end_paused(shared, id),
        }
    }

    fn call(&mut self, shared: &mut Shared, parent: RequestId, target: Target, context: &Context) {
        let (workflow, callee) = (context.workflow, target.service);
        let part = self.services[callee].choice(target, workflow);
        let fits =
            |client: &Client| client.callee() as usize == callee && client.endpoints() == part;
        let place = self.clients.iter().position(fits);
        self.gate.on_call(shared.now(), CalleeId(callee as u32), workflow);
        let context = self.gate.inherit(parent).unwrap_or(context.inherit());
        let client = &mut self.clients[place.expect("a client for every service that is called")];
        client.note_sheds(self.gate.take_sheds(CalleeId(callee as u32)));
        let time = self.services[callee].time_for(workflow);
        let service = time.sample(&mut self.call_times, 1.0);
        client.submit(shared, &NewCall { context, service, parent });
    }

    fn end_paused(&mut self, shared: &mut Shared, id: RequestId) {
        if !self.spec.blocking {
            self.paused -= 1;
        }
        let client = self.end(shared, id);
        self.outgoing.extend(client.map(Out::Replies));
    }
}
