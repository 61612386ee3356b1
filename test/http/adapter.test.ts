import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import { createServer, IncomingMessage, type RequestListener, ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { Writable } from 'node:stream'
import { describe, test, type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Plant } from '../../dist/plants/plant.js'
import type { PlantList } from '../../dist/plants/store.js'
import { type Bare, type BareOptions, listFrom, listOf, startBare } from '../support/bare.ts'
import { until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

/*
 * What a request holds in another application's server is released, however it ends, and nothing is
 * served after a request whose end is unclear.
 */

const GET = head('GET', '/plants')
const FERN = postBytes({ id: 1, name: 'Fern' })
const LARGE = { name: 'x'.repeat(1_000_000) }

interface Mounted extends Bare {
  readonly outer: number
}

async function mount(
  t: TestContext,
  options: BareOptions = {},
  listener: (handler: RequestListener) => RequestListener = (handler) => handler,
): Promise<Mounted> {
  const bare = await startBare(t, options)
  const server = createServer(listener(bare.adapter.handler)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    server.close()
    server.closeAllConnections()
  })
  // It listens on TCP.
  return { ...bare, outer: (server.address() as AddressInfo).port }
}

async function assertNothingHeld({ adapter, responses, bodies }: Bare): Promise<void> {
  await until('none is answered', () => adapter.active === 0)
  await until('no response is held', () => responses.held === 0)
  await until('no body is held', () => bodies.held === 0)
}

describe('adapter', { concurrency: true }, () => {
  test('a refused body that never ends is answered', async (t) => {
    const bare = await mount(t)
    const lines = ['Content-Type: application/json', 'Transfer-Encoding: chunked']
    const wire = await Wire.to(bare.outer)
    wire.write(`${head('DELETE', '/plants', { lines })}1\r\n{\r\n`)
    assert.deepEqual((await wire.answers(1)).map(verdict), ['methodNotAllowed'])
    await until('it is logged', () => bare.answered.length > 0)
    assert.deepEqual(bare.answered, ['DELETE 405'])
    assert.deepEqual(bare.refused, [40501])
    await assertNothingHeld(bare)
    wire.destroy()
  })

  test('pipelined lists hold nothing once the client has left', async (t) => {
    const list = (): PlantList => listOf(Array.from({ length: 20 }, () => [LARGE]))
    const bare = await mount(t, { store: { list } })
    for (let round = 0; round < 5; round++) {
      const wire = await Wire.to(bare.outer)
      wire.socket.pause()
      wire.write(GET.repeat(3))
      await until('one is under way', () => bare.responses.held > 0)
      wire.destroy()
      await assertNothingHeld(bare)
    }
  })

  test('a list that is ready after its client has left is read no further', async (t) => {
    let [opened, chunks] = [0, 0]
    const list = (): PlantList => {
      opened++
      return listFrom(() => {
        chunks += 1
        return read.then(() => [LARGE])
      })
    }
    let readOn = (): void => {}
    const read = new Promise<void>((resolve) => (readOn = resolve))
    const bare = await mount(t, { store: { list } })
    const early = await Wire.to(bare.outer)
    early.write(GET)
    await until('its list is open', () => opened === 1)
    early.destroy()
    await until('it has left', () => bare.adapter.active === 0)
    readOn()
    // Its list waits for the rest of a body that is not wanted.
    const half = head('GET', '/plants', { lines: ['Transfer-Encoding: chunked'] })
    const late = await Wire.to(bare.outer)
    late.write(`${half}1\r\n`)
    await until('the list is open', () => opened === 2)
    late.destroy()
    await assertNothingHeld(bare)
    await until('the first chunks are read', () => chunks >= opened)
    const before = chunks
    await sleep(50)
    assert.equal(chunks, before)
  })

  test('nothing is carried out after a request whose end is unclear', async (t) => {
    const { outer, plants } = await mount(t)
    const smuggled = postBytes({ id: 666, name: 'smuggled' })
    const many = Array.from({ length: 120 }, (_, at) => `X-${at}: x`)
    const chunked = 'Transfer-Encoding: chunked'
    for (const first of [
      `${head('POST', '/plants', { version: '1.0', lines: [chunked] })}0\r\n\r\n`,
      `${head('POST', '/plants', { lines: ['Transfer-Encoding: gzip', chunked] })}0\r\n\r\n`,
      head('GET', '/plants', { lines: many }),
    ]) {
      const wire = await Wire.to(outer)
      await wire.write(first + smuggled).end()
      assert.ok(!wire.text.includes(' 200 '), wire.text)
      wire.destroy()
    }
    await sleep(50)
    assert.deepEqual([...plants.keys()], [])
  })

  test('a request that is handed over when its response is finished is ignored', async (t) => {
    const bare = await mount(t, {}, (handler) => (req, res) => {
      if (req.url === '/own') {
        res.end('own')
        setTimeout(() => handler(req, res), 20)
      } else handler(req, res)
    })
    const wire = await Wire.to(bare.outer)
    for (let at = 1; at <= 3; at++) await wire.write(head('GET', '/own')).answers(at)
    await sleep(100)
    await until('all are ignored', () => bare.adapter.active === 0)
    assert.equal(await bare.adapter.drain(1000), 0)
    assert.deepEqual((await wire.write(GET).answers(4)).slice(3).map(verdict), [200])
    wire.destroy()
  })

  test('a list that fails ends its connection, also while it waits for others', async (t) => {
    let calls = 0
    const next = async (): Promise<Plant[]> => {
      await sleep(1)
      if (calls++ === 1) throw new Error('the disk is gone')
      return [{ name: 'x' }]
    }
    const list = (): PlantList => listFrom(next)
    const create = async (): Promise<'stored'> => (await sleep(100), 'stored')
    const bare = await mount(t, { store: { list, create } })
    const wire = await Wire.to(bare.outer)
    await wire.write(FERN + GET).end()
    assert.ok(!wire.text.includes('\r\n0\r\n\r\n'), wire.text)
    await assertNothingHeld(bare)
    wire.destroy()
  })

  test('a body that turns out too long after the application responded is dropped', async (t) => {
    const bare = await mount(t, {}, (handler) => (req, res) => {
      handler(req, res)
      if (req.method === 'POST') res.writeHead(504, { 'content-length': 0 }).end()
    })
    const wire = await Wire.to(bare.outer)
    const lines = ['Content-Type: application/json', 'Transfer-Encoding: chunked']
    wire.write(head('POST', '/plants', { lines }))
    await wire.answers(1)
    wire.write(`200000\r\n${' '.repeat(2 ** 21)}\r\n0\r\n\r\n${GET}`)
    assert.deepEqual(
      (await wire.answers(2)).map(({ status }) => status),
      [504, 200],
    )
    await assertNothingHeld(bare)
    wire.destroy()
  })

  for (const [what, wrap] of [
    ['returns nothing', (write: () => void) => void write()],
    ['returns a promise', async (write: () => void) => write()],
  ] as const) {
    test(`a list is whole, and waits for its reader, if write() ${what}`, async (t) => {
      let made = 0
      const COUNT = 100
      const list = (): PlantList => {
        const chunks = listOf(Array.from({ length: COUNT }, () => [LARGE]))
        return { next: () => (made++, chunks.next()) }
      }
      const bare = await mount(t, { store: { list } }, (handler) => (req, res) => {
        const { write } = res
        const wrapped = (chunk: Buffer): unknown => wrap(() => write.call(res, chunk, 'utf8'))
        handler(req, Object.assign(res, { write: wrapped }))
      })
      const wire = await Wire.to(bare.outer)
      wire.socket.pause()
      wire.write(GET)
      await until('it is under way', () => made > 0)
      await sleep(200)
      assert.ok(made < COUNT / 2, `${made} chunks`)
      wire.socket.resume()
      assert.deepEqual((await wire.answers(1)).map(verdict), [200])
      assert.ok(made >= COUNT)
      wire.destroy()
    })
  }

  test('listeners for an application that has a stream of its own do not pile up', async (t) => {
    // As the middleware `compression` does: what listens for 'drain' waits for its own stream.
    const own = new EventEmitter()
    let most = 0
    const bare = await mount(
      t,
      { store: { list: () => listOf(Array.from({ length: 30 }, () => [LARGE])) } },
      (handler) => (req, res) => {
        const { on } = res
        on.call(res, 'drain', () => own.emit('drain'))
        const add = (name: string, listener: () => void): EventEmitter => {
          if (name !== 'drain') return on.call(res, name, listener)
          own.on(name, listener)
          most = Math.max(most, own.listenerCount(name), own.listenerCount('close'))
          return own
        }
        handler(req, Object.assign(res, { on: add, once: add }))
      },
    )
    const wire = await Wire.to(bare.outer)
    assert.deepEqual(
      (await wire.write(GET).answers(1)).map(({ status }) => status),
      [200],
    )
    assert.equal(most, 1)
    wire.destroy()
  })
})

test('adapter: a body whose request the application answers is held no more', async (t) => {
  const { outer, bodies } = await mount(t, {}, (handler) => (req, res) => {
    handler(req, res)
    // After the service's own listener: the plant is not read yet.
    req.once('end', () => res.writeHead(504, { 'Content-Length': 0 }).end())
  })
  for (let id = 1; id <= 3; id++) {
    const wire = await Wire.to(outer)
    wire.write(postBytes({ ...LARGE, id }))
    const [answer] = await wire.answers(1)
    assert.equal(answer?.status, 504)
    wire.destroy()
  }
  await until('nothing is held', () => bodies.held === 0)
})

test('adapter: a request that a program makes without a connection is answered', async (t) => {
  const { adapter } = await startBare(t)
  // As light-my-request does for Fastify's `inject`.
  const socket = Object.assign(new EventEmitter(), { destroyed: false })
  const req = new IncomingMessage(socket as Socket)
  Object.assign(req, { method: 'GET', url: '/plants', httpVersion: '1.1', complete: true })
  req.rawHeaders = ['Host', 'a', 'Authorization', 'Bearer a.b.c']
  req.push(null)
  const res = new ServerResponse(req)
  let text = ''
  const written = new Writable({
    write(chunk: Buffer, _encoding, done) {
      text += chunk.toString('latin1')
      done()
    },
  })
  res.assignSocket(written as Socket)
  res.once('finish', () => res.emit('close'))
  adapter.handler(req, res)
  await once(res, 'finish')
  assert.match(text, /^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\n\[\]$/)
})
