import assert from 'node:assert/strict'
import { test } from 'node:test'
import { failureCases, SPECIAL } from '../support/conditions.ts'
import { scrape } from '../support/metrics.ts'
import { startService } from '../support/service.ts'
import { conditions, headerLines, verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

test('catalogue: every error has its status, value, message and headers', async (t) => {
  const { adminPort, cases, own } = await failureCases(t)
  for (const condition of conditions.keys()) {
    await t.test(condition, async () => {
      const { ask, method = 'get', headers = {}, closes = false } = cases[condition]
      const found = await ask(method)
      assert.equal(verdict(found), condition)
      const isHttp2 = condition === 'versionUnsupported'
      assert.equal(found.version, isHttp2 ? '2.0' : '1.1')
      const connection = isHttp2 ? [] : [closes ? 'close' : 'keep-alive']
      assert.deepEqual(headerLines(found, 'connection'), connection)
      assert.deepEqual(headerLines(found, 'content-length'), [String(found.body.length)])
      for (const name of SPECIAL) {
        const expected = headers[name]
        const lines = headerLines(found, name)
        assert.equal(lines.length, expected === undefined ? 0 : 1, name)
        if (expected instanceof RegExp) assert.match(lines[0] ?? '', expected)
        else if (expected !== undefined) assert.equal(lines[0], expected)
      }
    })
  }
  await t.test('each was counted by its value', async () => {
    const { value } = await scrape(adminPort)
    for (const condition of own) {
      const [error] = conditions.get(condition) ?? assert.fail()
      assert.equal(value(`plant_store_errors_total{error="${error}"}`), 1, condition)
    }
  })
})

test('catalogue: Request-Id is that of client or gateway if usable, else new', async (t) => {
  const { port } = await startService(t)
  const idFor = async (lines: readonly string[]) =>
    headerLines(await firstAnswer(port, head('GET', '/plants', { lines })), 'request-id')[0] ?? ''
  for (const id of ['a', '!"#~', 'x'.repeat(128)])
    assert.equal(await idFor([`Request-Id: ${id}`]), id)
  const fresh = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/
  const unusable = ['', ' a b', ` ${'x'.repeat(129)}`, ' \xe9'].map((id) => [`Request-Id:${id}`])
  for (const lines of [[], ...unusable, ['Request-Id: a', 'Request-Id: a']])
    assert.match(await idFor(lines), fresh, lines.join())
  assert.notEqual(await idFor([]), await idFor([]))
  assert.equal(await idFor(['X-Request-Id: gateway']), 'gateway')
  assert.equal(await idFor(['X-Request-Id: gateway', 'Request-Id: own']), 'own')
  const [gateway, empty] = ['X-Request-Id: gateway', 'Request-Id:']
  for (const lines of [
    ...unusable.map(([line]) => [`X-${line}`]),
    [gateway, gateway],
    // One that cannot be used is not replaced by another.
    [gateway, empty],
    [gateway, 'Request-Id: a b'],
  ])
    assert.match(await idFor(lines), fresh, lines.join())
  const [mine, json] = ['X-Request-Id: mine', 'Content-Type: application/json']
  for (const bytes of [
    head('GET', '/plants', { version: '2.0', lines: [mine] }),
    head('CONNECT', 'plants.test:443', { lines: [mine] }),
    head('POST', '/plants', { lines: [mine, json, 'Content-Length: 9999999'] }),
  ])
    assert.deepEqual(headerLines(await firstAnswer(port, bytes), 'request-id'), ['mine'])
})
