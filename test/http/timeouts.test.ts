import assert from 'node:assert/strict'
import { once } from 'node:events'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Created } from '../../dist/plants/store.js'
import { listOf, startBare, chunkOf } from '../support/bare.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { answersToHalf, head, postBytes, Wire } from '../support/wire.ts'

const SHORT_MS = 300
const CHUNKED_JSON = ['Content-Type: application/json', 'Transfer-Encoding: chunked']
const HALF_POST = postBytes({ id: 1, name: 'half' }).slice(0, -3)

// They mostly wait, so they run side by side.
describe('timeouts', { concurrency: true }, () => {
  test('late headers are 408, after the responses to earlier requests', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS } })
    for (const before of ['', head('GET', '/plants')]) {
      const answers = await answersToHalf(
        port,
        (wire) => void wire.write(`${before}GET /plants HTTP/1.1\r\nHost:`),
      )
      assert.deepEqual(
        answers.map(verdict),
        before === '' ? ['requestTimeout'] : [200, 'requestTimeout'],
      )
      assert.deepEqual(headerLines(answers.at(-1) ?? assert.fail(), 'connection'), ['close'])
    }
  })

  test('headers that come byte by byte are 408 too', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS } })
    const answers = await answersToHalf(port, async (wire) => {
      wire.write('GET /plants HTTP/1.1\r\nHost: ')
      while (!wire.ended) {
        wire.write('a')
        await sleep(10)
      }
    })
    assert.deepEqual(answers.map(verdict), ['requestTimeout'])
  })

  test('a connection that is never used is closed without a response', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS } })
    const wire = await Wire.to(port)
    assert.deepEqual(await wire.allAnswers(), [])
    wire.destroy()
  })

  test('a late body is 408, slow or stalled, and its plant is not created', async (t) => {
    // As in the service: a stalled connection may last as long as a whole request.
    const { port, plants, answered, bodies } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: 2 * SHORT_MS, stalledMs: 2 * SHORT_MS },
    })
    for (const trickling of [false, true]) {
      for (const bytes of [
        HALF_POST,
        head('POST', '/plants', { lines: CHUNKED_JSON }) + '5\r\n{"id"\r\n',
      ]) {
        const answers = await answersToHalf(port, async (wire) => {
          wire.write(bytes)
          while (trickling && !wire.ended) {
            wire.write(bytes === HALF_POST ? '' : '1\r\n \r\n')
            await sleep(10)
          }
          while (!wire.ended) await sleep(10)
          // The rest comes too late.
          wire.write(bytes === HALF_POST ? '"}\n' : '0\r\n\r\n')
          await sleep(10)
        })
        assert.deepEqual(answers.map(verdict), ['requestTimeout'])
      }
    }
    assert.equal(plants.size, 0)
    assert.deepEqual(new Set(answered), new Set(['POST 408']))
    await until('no body is held', () => bodies.heldBytes === 0)
  })

  test('a body that is complete after its 408 creates no plant', async (t) => {
    const { port, plants, bodies } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS },
    })
    const answers = await answersToHalf(port, async (wire) => {
      wire.write(HALF_POST)
      while (!wire.ended) await sleep(10)
      wire.write(postBytes({ id: 1, name: 'half' }).slice(-3))
      await sleep(50)
    })
    assert.deepEqual(answers.map(verdict), ['requestTimeout'])
    assert.equal(plants.size, 0)
    await until('no body is held', () => bodies.heldBytes === 0)
  })

  test('an unread body that never ends brings no second response', async (t) => {
    const { port } = await startBare(t, { timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS } })
    for (const bytes of [
      `${head('GET', '/plants', { lines: ['Content-Length: 5'] })}ab`,
      `${head('DELETE', '/plants', { lines: ['Content-Length: 5'] })}ab`,
    ]) {
      assert.equal((await answersToHalf(port, (wire) => void wire.write(bytes))).length, 1)
    }
  })

  test('a timeout writes nothing into the middle of a list', async (t) => {
    const plants = Array.from({ length: 20 }, () => ({ name: 'a' }))
    const { port } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS },
      store: {
        list() {
          const left = [...plants]
          const chunk = (): string | undefined => {
            const some = left.splice(0, 1)
            return some.length > 0 ? chunkOf(some) : undefined
          }
          // With the first two the response is under way.
          return {
            cutAt: undefined,
            next: () => (left.length > plants.length - 2 ? chunk() : sleep(40).then(chunk)),
            ended: false,
            close() {},
          }
        },
      },
    })
    const answers = await answersToHalf(
      port,
      (wire) => void wire.write(`${head('GET', '/plants', { lines: ['Content-Length: 5'] })}ab`),
    )
    assert.deepEqual(answers.map(verdict), [200])
    assert.deepEqual(JSON.parse(answers[0]?.body ?? ''), plants)
  })

  test('the time that the service takes is not counted against the client', async (t) => {
    const { port } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS },
      store: { create: async (): Promise<Created> => (await sleep(3 * SHORT_MS), 'stored') },
    })
    // The client's end closes it: an idle connection would stay open.
    const answers = await answersToHalf(
      port,
      (wire) =>
        void wire.write(postBytes({ id: 1, name: 'a' }) + head('GET', '/plants')).halfClose(),
    )
    assert.deepEqual(answers.map(verdict), [200, 200])
  })

  test('a token or a store that takes too long is 503, each with its own value', async (t) => {
    const never = (): Promise<never> => new Promise(() => {})
    const timeouts = { servingMs: SHORT_MS }
    for (const [options, condition] of [
      [{ timeouts, authenticate: never }, 'overloaded'],
      [{ timeouts, store: { create: never } }, 'storageUnavailable'],
    ] as const) {
      const { port } = await startBare(t, options)
      const wire = await Wire.to(port)
      const [answer] = await wire.write(postBytes({ id: 1, name: 'a' })).answers(1)
      assert.equal(verdict(answer ?? assert.fail()), condition)
      assert.deepEqual(headerLines(answer ?? assert.fail(), 'retry-after'), ['1'])
      wire.destroy()
    }
  })

  test('a request that waits for a slow one is not late, though half is unread', async (t) => {
    const { port } = await startBare(t, {
      timeouts: { headersMs: SHORT_MS, requestMs: SHORT_MS },
      store: { create: async (): Promise<Created> => (await sleep(3 * SHORT_MS), 'stored') },
    })
    for (const cut of [HALF_POST.length, 30]) {
      const slow = postBytes({ id: 1, name: 'half' })
      const answers = await answersToHalf(port, async (wire) => {
        wire.write(slow + slow.slice(0, cut))
        await until('the first is answered', () => wire.text.includes('\r\n\r\n') || wire.ended)
        wire.write(slow.slice(cut)).halfClose()
      })
      assert.deepEqual(answers.map(verdict), [200, 200])
    }
  })

  test('a stalled reader is cut off, and its list is closed', async (t) => {
    const plants = Array.from({ length: 100 }, () => ({ name: 'x'.repeat(10_000) }))
    let closed = 0
    for (const chunks of [
      Array.from({ length: 100 }, () => plants),
      [Array.from({ length: 20 }, () => plants).flat()],
    ]) {
      const { port, server } = await startBare(t, {
        timeouts: { stalledMs: SHORT_MS },
        store: { list: () => listOf(chunks, () => closed++) },
      })
      const connected = once(server, 'connection')
      const wire = await Wire.to(port)
      wire.socket.pause()
      wire.write(head('GET', '/plants') + head('GET', '/plants'))
      // The first of its arguments is the socket.
      const [side] = (await connected) as [import('node:net').Socket]
      if (!side.destroyed) await once(side, 'close')
      wire.destroy()
    }
    await until('the list of several chunks is closed', () => closed > 0)
    assert.equal(closed, 1, 'the other had ended')
  })
})
