// A plain service for `cargo xtask peers tiers`: an event loop, and one piece of work at a time.
//
// node tier.js HOST:PORT MEAN_MS [CALLEE]
//
// It works for an exponential time and hands on what it has done, with the request's `traceparent` as any service that is traced
// does. /tally tells what was done.
'use strict';

const http = require('node:http');
const { performance } = require('node:perf_hooks');

const [listen, meanMs, callee] = process.argv.slice(2);
const [host, port] = listen.split(':');
const agent = new http.Agent({ keepAlive: true });
const began = performance.now();
let free = began;
let done = 0;
let work = 0;

// What was to be done is done when it should have been: a timer that is late is made up for by the next.
function doTheWork(then) {
  const takes = -Math.log(1 - Math.random()) * Number(meanMs);
  free = Math.max(free, performance.now()) + takes;
  done += 1;
  work += takes;
  setTimeout(then, Math.max(0, free - performance.now()));
}

function handOn(trace, then) {
  const [to, at] = callee.split(':');
  const headers = trace ? { traceparent: trace } : {};
  const call = http.get({ host: to, port: at, path: '/', agent, headers }, (answer) => {
    answer.resume();
    answer.on('end', () => then(answer.statusCode));
  });
  call.on('error', () => then(502));
}

const server = http.createServer((request, response) => {
  const answer = (status, body) => {
    response.writeHead(status, { 'content-length': Buffer.byteLength(body) });
    response.end(body);
  };
  if (request.url === '/tally') {
    const able = (performance.now() - began) / 1e3;
    return answer(200, JSON.stringify({ done, work_s: work / 1e3, able_s: able }));
  }
  doTheWork(() => {
    if (callee) handOn(request.headers.traceparent, (status) => answer(status, 'ok'));
    else answer(200, 'ok');
  });
});
server.listen(Number(port), host);
