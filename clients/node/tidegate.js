'use strict';
// Calls that a service makes keep the rank and the deadline of the request they are made for.
//
// One file without dependencies: copy it. It takes `overload-context`, `traceparent` and `x-request-id` of
// the request that is being served, and puts them on the calls that are made meanwhile. Who traces with
// OpenTelemetry needs none of this behind a sidecar: `traceparent` is enough.
//
//     const tidegate = require('./tidegate');
//     tidegate.install();                                   // http, https and fetch
//     http.createServer(tidegate.wrap(listener));           // node:http
//     app.use(tidegate.middleware);                         // Express, Connect
//     tidegate.inside(headers, () => ...);                  // anything else
//     const more = tidegate.headers();                      // for any other client
//
// What belongs to a request follows it through promises, timers and callbacks (AsyncLocalStorage).

const { AsyncLocalStorage } = require('node:async_hooks');
const http = require('node:http');
const https = require('node:https');

const CONTEXT = 'overload-context';
const COPIED = ['traceparent', 'tracestate', 'x-request-id'];
// A member of a dictionary of RFC 9651: a key and a string, an inner list, or anything else; parameters say
// nothing and are dropped.
const MEMBER = /\s*([a-z*][a-z0-9_.*-]*)(=(?:%?"(?:[^"\\]|\\.)*"|\([^)]*\)|[^,;\s"(]+))?(?:;[^,"]*)?\s*(?:,|$)/y;
// The attempt, the process that calls, what waits at it and what it shed are the caller's own.
const OWN = new Set(['a', 'c', 'q', 's']);
const NUMBER = /^=\d{1,15}(\.\d{1,3})?$/;
// As a gate reads it; longer ones are nobody's.
const LONGEST = 1024;

const current = new AsyncLocalStorage();

// A context as it travels on, so many milliseconds after it was received; empty if it is malformed.
function passOn(context, spent) {
  const members = [];
  if (context.length > LONGEST) return '';
  MEMBER.lastIndex = 0;
  while (MEMBER.lastIndex < context.length) {
    const member = MEMBER.exec(context);
    if (!member) return '';
    const key = member[1];
    let value = (member[2] || '').trim();
    if (key === 'd') {
      if (!NUMBER.test(value)) return '';
      value = '=' + String(Math.round(Math.max(0, value.slice(1) - spent) * 1000) / 1000);
    }
    if (!OWN.has(key)) members.push(key + value);
  }
  return members.join(', ');
}

// Runs `work` for the request with these headers, whose names are in lower case as Node has them.
function inside(headers, work) {
  const fields = {};
  for (const name of [CONTEXT, ...COPIED]) {
    const value = headers[name];
    if (typeof value === 'string') fields[name] = value;
  }
  return current.run({ fields, since: performance.now() }, work);
}

// What a call sends that is made now; nothing outside of any request.
function headers() {
  const request = current.getStore();
  if (!request) return {};
  const { [CONTEXT]: context, ...fields } = request.fields;
  const passed = passOn(context || '', performance.now() - request.since);
  if (passed) fields[CONTEXT] = passed;
  return fields;
}

// A listener of node:http that serves each request as itself.
function wrap(listener) {
  return (request, response) => inside(request.headers, () => listener(request, response));
}

// The same for Express and Connect.
function middleware(request, _response, next) {
  inside(request.headers, next);
}

// Calls by http, https and fetch carry what they should.
function install() {
  for (const library of [http, https]) {
    const { request } = library;
    library.request = function (...args) {
      const made = request.apply(this, args);
      for (const [name, value] of Object.entries(headers())) {
        if (!made.headersSent && !made.hasHeader(name)) made.setHeader(name, value);
      }
      return made;
    };
    library.get = function (...args) {
      const made = library.request(...args);
      made.end();
      return made;
    };
  }
  const { fetch } = globalThis;
  globalThis.fetch = (input, init) => {
    const own = init?.headers ?? (input instanceof Request ? input.headers : undefined);
    const all = new Headers(own);
    for (const [name, value] of Object.entries(headers())) {
      if (!all.has(name)) all.set(name, value);
    }
    return fetch(input, { ...init, headers: all });
  };
}

module.exports = { headers, inside, install, middleware, passOn, wrap };
