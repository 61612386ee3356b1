import assert from 'node:assert/strict'
import { once } from 'node:events'
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { duplexPair, PassThrough } from 'node:stream'
import { describe, test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { readOptions } from '../../dist/settings/read.js'
import { createLog } from '../../dist/telemetry/log.js'
import type { PlantService } from '../../dist/service.js'
import { SqljsStore } from '../../dist/store/sqljs/store.js'
import { listOf, startBare } from '../support/bare.ts'
import { EMBEDDED } from '../support/embedded.ts'
import { AUTHORITY, CERTIFICATE, KEY } from '../support/etcd-pem.ts'
import { temporaryDirectory, mountedService } from '../support/service.ts'
import { PATIENCE_MS, until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, type Target, Wire } from '../support/wire.ts'

/*
 * The handler in another application's server, which may touch every request and response, before
 * and while the handler does. An unhandled rejection or exception fails a test by itself.
 */

type Mounting = (service: PlantService, req: IncomingMessage, res: ServerResponse) => void

interface Mounted {
  readonly service: PlantService
  readonly server: Server
  readonly port: Target
  readonly logLines: readonly string[]
}

type Mount = (t: TestContext, mounting?: Mounting) => Promise<Mounted>

/** A server of the test's own, and how to connect to it. */
const SERVERS = {
  http: (listener: RequestListener) => createServer(listener),
  https: (listener: RequestListener) =>
    createSecureServer({ key: KEY, cert: CERTIFICATE }, listener),
} as const
type Scheme = keyof typeof SERVERS

/** Makes the server listen. Returns what `Wire.to` connects to. */
async function listening(t: TestContext, server: Server, scheme: Scheme): Promise<Target> {
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => {
    server.close()
    server.closeAllConnections()
  })
  // It listens on TCP.
  const { port } = server.address() as AddressInfo
  return scheme === 'http' ? port : { port, ca: AUTHORITY }
}

const mount = mountIn('http')

/** A service in the test's own server, by default as its only listener. */
function mountIn(scheme: Scheme): Mount {
  return (t, mounting) => mountService(t, scheme, mounting)
}

async function mountService(
  t: TestContext,
  scheme: Scheme,
  mounting?: Mounting,
): Promise<Mounted> {
  const logLines: string[] = []
  const log = createLog('info', { write: (lines, done) => (logLines.push(String(lines)), done()) })
  const config = readOptions({
    ...EMBEDDED,
    data: join(await temporaryDirectory(), 'data'),
    shutdownTimeout: 2 * (PATIENCE_MS / 1000),
  })
  const service = mountedService(config, {
    log,
    onFatal(error) {
      throw error
    },
  })
  await service.open()
  t.after(() => service.close())
  const server = SERVERS[scheme](
    mounting ? (req, res) => mounting(service, req, res) : service.handler,
  )
  return { service, server, port: await listening(t, server, scheme), logLines }
}

/** Like a body parser: reads the whole body, then passes the request on. */
function parseFirst(service: PlantService, req: IncomingMessage, res: ServerResponse): void {
  req.on('data', () => {}).once('end', () => setImmediate(() => service.handler(req, res)))
}

const TIMED_OUT = 'timed out by the application'

/** Answers like a timeout middleware. */
function timeOut(res: ServerResponse): void {
  res.writeHead(504, { 'content-length': TIMED_OUT.length }).end(TIMED_OUT)
}

const GET = head('GET', '/plants')
const FERN = postBytes({ id: 1, name: 'Fern' })
const CHUNKED = head('POST', '/plants', {
  lines: ['Content-Type: application/json', 'Transfer-Encoding: chunked'],
})
const CHUNKED_FERN = `${CHUNKED}16\r\n{"id":1,"name":"Fern"}\r\n0\r\n\r\n`
const READ_BEFORE = 'the body was read before the handler: mount it before body parsers'

for (const scheme of ['http', 'https'] as const) {
  const title = `mounted in node:${scheme}`
  describe(title, { concurrency: true }, () => everyCase(mountIn(scheme)))
  describe(`${title}: 100 Continue`, { concurrency: true }, () => everyContinue(mountIn(scheme)))
}

function everyCase(mount: Mount): void {
  test('an answer that the application sends first is the only one', async (t) => {
    // Before the handler, while it waits for the body, and while it waits for the store.
    const ways: readonly Mounting[] = [
      (service, req, res) => {
        timeOut(res)
        service.handler(req, res)
      },
      (service, req, res) => {
        service.handler(req, res)
        if (!res.headersSent) timeOut(res)
      },
      (service, req, res) => {
        service.handler(req, res)
        req.once('end', () => timeOut(res))
      },
    ]
    for (const way of ways) {
      let first = true
      const { port } = await mount(t, (service, req, res) => {
        if (!first) service.handler(req, res)
        else way(service, req, res)
        first = false
      })
      const wire = await Wire.to(port)
      const answers = await wire.write(FERN + GET).answers(2)
      assert.deepEqual(
        answers.map(({ status }) => status),
        [504, 200],
      )
      assert.equal(answers[0]?.body, TIMED_OUT)
      wire.destroy()
    }
  })

  test('an answer that the application has begun is left to it', async (t) => {
    const { port } = await mount(t, (service, req, res) => {
      if (req.method === 'POST') res.writeHead(202)
      service.handler(req, res)
      if (req.method === 'POST') setImmediate(() => res.end('"later"'))
    })
    const wire = await Wire.to(port)
    const answers = await wire.write(FERN + GET).answers(2)
    assert.deepEqual(
      answers.map(({ status }) => status),
      [202, 200],
    )
    assert.equal(answers[0]?.body, '"later"')
    wire.destroy()
  })

  test('an application that ends a list early breaks no other request', async (t) => {
    let ended = 0
    const { port } = await mount(t, (service, req, res) => {
      service.handler(req, res)
      if (req.url !== '/plants?limit=1000000') return
      const end = (): void => {
        if (!res.headersSent) return void setImmediate(end)
        res.end('application')
        res.end('again')
        ended++
      }
      end()
    })
    const wire = await Wire.to(port)
    for (let id = 0; id < 3; id++)
      await wire.write(postBytes({ id, name: 'x'.repeat(900_000) })).answers(id + 1)
    for (let round = 0; round < 3; round++) {
      const other = await Wire.to(port)
      other.write(head('GET', '/plants?limit=1000000'))
      await until('it is ended', () => ended > round)
      await sleep(20)
      other.destroy()
    }
    assert.equal((await wire.write(head('GET', '/plants?limit=1')).answers(4)).length, 4)
    wire.destroy()
  })

  test('an application that destroys a response breaks no other request', async (t) => {
    for (const early of [true, false]) {
      const { port } = await mount(t, (service, req, res) => {
        if (early && req.method === 'POST') res.destroy()
        service.handler(req, res)
        if (!early && req.method === 'POST') res.destroy()
      })
      const wire = await Wire.to(port)
      wire.write(FERN)
      assert.deepEqual(await wire.allAnswers(), [])
      const other = await Wire.to(port)
      assert.deepEqual((await other.write(GET).answers(1)).map(verdict), [200])
      for (const each of [wire, other]) each.destroy()
    }
  })

  test('a body that a parser has read gets 500 at once, and the log says why', async (t) => {
    const { port, logLines } = await mount(t, (service, req, res) => {
      if (req.method === 'POST') parseFirst(service, req, res)
      else service.handler(req, res)
    })
    for (const post of [FERN, CHUNKED_FERN, postBytes({ id: 1, name: 'x'.repeat(200_000) })]) {
      if (logLines.length > 0) assert.ok(logLines.join('').includes(READ_BEFORE))
      const wire = await Wire.to(port)
      const answers = await wire.write(post + GET).answers(2)
      assert.deepEqual(answers.map(verdict), ['internal', 200])
      assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['keep-alive'])
      wire.destroy()
    }
    const errors = logLines
      .join('')
      .split('\n')
      .filter((line) => line.includes('"level":"error"'))
    assert.ok(
      errors.length >= 3 && errors.every((line) => line.includes(READ_BEFORE)),
      errors.join('\n'),
    )
  })

  test('a body that a parser has read does not delay a refusal', async (t) => {
    const { port } = await mount(t, parseFirst)
    for (const [line, body] of [
      ['Content-Length: 2', '{}'],
      ['Content-Length: 100000', ' '.repeat(100_000)],
      ['Transfer-Encoding: chunked', '0\r\n\r\n'],
    ] as const) {
      const wire = await Wire.to(port)
      const post = head('POST', '/plants', { token: undefined, lines: [line] }) + body
      const answers = await wire.write(post + head('OPTIONS', '/plants')).answers(2)
      assert.deepEqual(answers.map(verdict), ['tokenMissing', 204], line)
      wire.destroy()
    }
  })

  test('a body that the application decodes to text gets 500', async (t) => {
    const ways: readonly Mounting[] = [
      (service, req, res) => service.handler(req.setEncoding('latin1'), res),
      (service, req, res) =>
        service.handler(
          req.on('readable', () => {}),
          res,
        ),
    ]
    for (const way of ways) {
      const { port, logLines } = await mount(t, way)
      const wire = await Wire.to(port)
      assert.deepEqual((await wire.write(FERN).answers(1)).map(verdict), ['internal'])
      assert.ok(logLines.join('').includes(READ_BEFORE))
      wire.destroy()
    }
  })

  test('a body that the application pauses, copies or counts is still read', async (t) => {
    let counted = 0
    const copy = new PassThrough()
    const ways: readonly Mounting[] = [
      (service, req, res) => service.handler(req.pause(), res),
      (service, req, res) => {
        req.pipe(copy, { end: false })
        service.handler(req, res)
      },
      (service, req, res) => {
        service.handler(req, res)
        req.on('data', (chunk: Buffer) => (counted += chunk.length))
      },
    ]
    for (const way of ways) {
      const { port } = await mount(t, way)
      const wire = await Wire.to(port)
      assert.deepEqual((await wire.write(FERN).answers(1)).map(verdict), [200])
      wire.destroy()
    }
    // The application still gets every byte of a body that is too long for the service.
    const { port } = await mount(t, (service, req, res) => {
      service.handler(req, res)
      req.on('data', (chunk: Buffer) => (counted += chunk.length))
    })
    counted = 0
    const wire = await Wire.to(port)
    const bytes = `${CHUNKED}100000\r\n${' '.repeat(2 ** 20)}\r\n5\r\nxxxxx\r\n0\r\n\r\n`
    assert.deepEqual((await wire.write(bytes).allAnswers()).map(verdict), ['bodyTooLarge'])
    assert.equal(counted, 2 ** 20 + 5)
    wire.destroy()
  })

  test('a socket that is closed before the handler sees it does not delay close', async (t) => {
    let [arrived, seen] = [0, 0]
    const { service, port } = await mount(t, ({ handler }, req, res) => {
      arrived++
      void once(req.socket, 'close').then(() => {
        handler(req, res)
        seen++
      })
    })
    const wire = await Wire.to(port)
    wire.write(GET)
    // A TLS socket that is destroyed at once may drop it.
    await until('the application has it', () => arrived === 1)
    wire.halfClose().destroy()
    await until('the handler has seen it', () => seen === 1)
    // The deadline of a close is longer than `until` waits.
    let closed = false
    void service.close().then(() => (closed = true))
    await until('it is closed', () => closed)
  })

  test('requests that the application passes on out of order are all answered', async (t) => {
    // As if the first one waited for a session.
    const { port } = await mount(t, (service, req, res) => {
      if (req.method === 'POST') setTimeout(() => service.handler(req, res), 50)
      else service.handler(req, res)
    })
    const wire = await Wire.to(port)
    const answers = await wire.write(FERN + GET + head('GET', '/plants?limit=1')).answers(3)
    assert.deepEqual(answers.map(verdict), [200, 200, 200])
    // Their order is the application's: what the lists show is up to it.
    assert.equal(answers[0]?.body, '{"name":"Fern"}')
    wire.destroy()
  })

  test('many pipelined requests are answered in order', async (t) => {
    const { port } = await mount(t)
    const wire = await Wire.to(port)
    const posts = Array.from({ length: 100 }, (_, id) => postBytes({ id, name: String(id) }))
    const answers = await wire.write(posts.join('')).answers(100)
    assert.deepEqual(
      answers.map(({ body }) => body),
      posts.map((_, id) => `{"name":"${id}"}`),
    )
    const list = (await wire.write(GET).answers(101)).at(-1)
    assert.equal((JSON.parse(list?.body ?? '') as unknown[]).length, 100)
    wire.destroy()
  })

  test('HTTP/1.0 and a server without keep-alive get whole answers', async (t) => {
    const { port, server } = await mount(t)
    server.keepAliveTimeout = 1
    server.maxRequestsPerSocket = 1
    for (const version of ['1.0', '1.1']) {
      const wire = await Wire.to(port)
      assert.deepEqual(
        (await wire.write(head('GET', '/plants', { version })).allAnswers()).map(verdict),
        [200],
      )
      wire.destroy()
    }
  })

  test('headers of the application stay, and a broken response ends its connection', async (t) => {
    const { port } = await mount(t, (service, req, res) => {
      res.setHeader('Access-Control-Allow-Origin', '*')
      if (req.method === 'OPTIONS') {
        res.writeHead = () => {
          throw new Error('patched')
        }
      }
      service.handler(req, res)
    })
    const wire = await Wire.to(port)
    const [answer] = await wire.write(GET).answers(1)
    assert.deepEqual(headerLines(answer ?? assert.fail(), 'access-control-allow-origin'), ['*'])
    wire.write(head('OPTIONS', '/plants'))
    assert.deepEqual((await wire.allAnswers()).map(verdict), [200])
    const other = await Wire.to(port)
    assert.deepEqual((await other.write(GET).answers(1)).map(verdict), [200])
    for (const each of [wire, other]) each.destroy()
  })
}

function everyContinue(mount: Mount): void {
  const lines = ['Content-Type: application/json', 'Content-Length: 22', 'Expect: 100-continue']
  const asked = head('POST', '/plants', { lines })
  const interim = (wire: Wire): number =>
    wire.text.split('HTTP/1.1 100 Continue\r\n\r\n').length - 1

  async function assertOnce(port: Target): Promise<void> {
    const wire = await Wire.to(port)
    wire.write(asked)
    await until('it may send', () => interim(wire) > 0)
    assert.deepEqual((await wire.write('{"id":1,"name":"Fern"}').answers(1)).map(verdict), [200])
    assert.deepEqual((await wire.write(GET).answers(2)).map(verdict), [200, 200])
    assert.equal(interim(wire), 1)
    wire.destroy()
  }

  test('is sent once by the server that has the handler', async (t) => {
    await assertOnce((await mount(t)).port)
    await assertOnce((await mount(t, (service, req, res) => service.handler(req, res))).port)
  })

  test('is sent once if the application sends it', async (t) => {
    const { service, server, port } = await mount(t)
    server.on('checkContinue', (req, res) => {
      res.writeContinue()
      if (req.url === '/plants') server.emit('request', req, res)
      else service.handler(req, res)
    })
    await assertOnce(port)
  })

  test('after it, a refusal keeps the connection', async (t) => {
    const { port } = await mount(t)
    const wire = await Wire.to(port)
    wire.write(asked.replace(/Authorization: .*\r\n/, ''))
    await until('it may send', () => interim(wire) > 0)
    const answers = await wire.write(`{"id":1,"name":"Fern"}${GET}`).answers(2)
    assert.deepEqual(answers.map(verdict), ['tokenMissing', 200])
    wire.destroy()
  })
}

test("mounted: the bytes of the application's headers do not depend on the body", async (t) => {
  const { port } = await mount(t, (service, req, res) => {
    res.setHeader('X-Name', 'caf\u00e9')
    service.handler(req, res)
  })
  for (const [id, name] of ['Fern', 'F\u00e9rn', 'Fern'.repeat(2000)].entries()) {
    const wire = await Wire.to(port)
    wire.write(postBytes({ id, name }, { lines: ['Connection: close'] }))
    await until('it is answered', () => wire.text.endsWith('"}'))
    assert.match(wire.text, /^HTTP\/1\.1 200 OK\r\n/)
    assert.match(wire.text, /\r\nX-Name: caf\u00e9\r\n/)
    assert.ok(wire.text.endsWith(Buffer.from(`{"name":"${name}"}`).toString('latin1')))
    wire.destroy()
  }
})

// Not with the others: it replaces a method of every store.
test('mounted: a timeout during a create is the only answer; the plant is kept', async (t) => {
  const create = SqljsStore.prototype.create
  const { port } = await mount(t, (service, req, res) => {
    if (req.method === 'POST') setTimeout(() => timeOut(res), 50)
    service.handler(req, res)
  })
  t.mock.method(
    SqljsStore.prototype,
    'create',
    async function (this: SqljsStore, ...args: Parameters<typeof create>) {
      const created = await create.apply(this, args)
      await sleep(200)
      return created
    },
  )
  const wire = await Wire.to(port)
  const answers = await wire.write(FERN + GET).answers(2)
  assert.deepEqual(
    answers.map(({ status }) => status),
    [504, 200],
  )
  await sleep(300)
  assert.deepEqual(
    (await wire.write(GET).answers(3)).slice(-1).map(({ body }) => body),
    ['[{"name":"Fern"}]'],
  )
  wire.destroy()
})

const PLANT = { name: 'x'.repeat(1_000_000) }

for (const scheme of ['http', 'https', 'a stream'] as const) {
  test(`mounted in ${scheme}: readers that stall are cut off by a stop`, async (t) => {
    const { adapter } = await startBare(t, {
      store: { list: () => listOf(Array.from({ length: 100 }, () => [PLANT])) },
    })
    const isStream = scheme === 'a stream'
    const server = SERVERS[isStream ? 'http' : scheme](adapter.handler)
    const port = await listening(t, server, isStream ? 'http' : scheme)
    const wires: { destroy(): void }[] = []
    for (let at = 0; at < 3; at++) {
      const [ours, theirs] = duplexPair()
      if (isStream) server.emit('connection', theirs)
      const wire = isStream ? ours : (await Wire.to(port)).socket
      wire.pause().write(head('GET', '/plants'))
      wires.push(wire)
    }
    await until('all are answered', () => adapter.active === 3)
    assert.equal(await adapter.drain(50), 3)
    await until('all are cut off', () => adapter.active === 0)
    for (const wire of wires) wire.destroy()
  })
}
