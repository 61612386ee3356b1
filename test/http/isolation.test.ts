import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, Wire } from '../support/wire.ts'

/** Owners that a careless key, comparison or normalization would take for one another. */
const OWNERS = ['alice', 'Alice', 'alice ', ' alice', 'alice\0', 'alice\0x', 'alic', 'alice1', '1 alice', '%', '_', '*', 'é', 'e\u0301', '0', '00', '__proto__', '💐', "a'b", 'a"b', 'null', 'x'.repeat(5000), 'ａlice']

test('isolation', async (t) => {
  const { port } = await startService(t)

  await t.test('one id belongs to every owner separately', async () => {
    for (const [at, owner] of OWNERS.entries()) {
      const reply = await post(port, { id: 1, name: `plant ${at}` }, { token: token(owner) })
      assert.deepEqual([verdict(reply), reply.text], [200, `{"name":"plant ${at}"}`])
    }
    for (const [at, owner] of OWNERS.entries()) {
      assert.deepEqual((await call(port, { token: token(owner) })).json(), [{ name: `plant ${at}` }])
      assert.deepEqual((await call(port, { token: token(owner), path: '/plants?limit=1' })).json(), [{ name: `plant ${at}` }])
    }
  })

  await t.test('whether somebody else has an id changes nothing in any answer', async () => {
    const shape = async (bearer: string) => {
      const replies = [await post(port, { id: 1, name: 'mine' }, { token: bearer }), await post(port, { id: 1, name: 'mine' }, { token: bearer }), await post(port, { id: 1, name: 'other' }, { token: bearer }), await call(port, { token: bearer, path: '/plants?limit=1' })]
      return replies.map((reply) => [verdict(reply), reply.text, headerLines(reply, 'link')])
    }
    const [first, ...others] = [await shape(token('new one')), await shape(token('new two'))]
    for (const other of others) assert.deepEqual(other, first)
  })

  await t.test('requests of several owners on one connection do not mix', async () => {
    const wire = await Wire.to(port)
    const owners = Array.from({ length: 40 }, (_, at) => at % OWNERS.length)
    const answers = await wire.write(owners.map((at) => head('GET', '/plants', { token: token(OWNERS[at]) })).join('')).answers(owners.length)
    assert.deepEqual(answers.map(({ body }) => body), owners.map((at) => `[{"name":"plant ${at}"}]`))
    wire.destroy()
  })

  await t.test('members of a team share plants where a team claim owns them', async (inner) => {
    const team = await startService(inner, { ownerClaim: 'team' })
    await post(team.port, { id: 1, name: 'shared' }, { token: token('alice', { team: 'green' }) })
    assert.deepEqual((await call(team.port, { token: token('bob', { team: 'green' }) })).json(), [{ name: 'shared' }])
    assert.deepEqual((await call(team.port, { token: token('alice', { team: 'red' }) })).json(), [])
    for (const claim of [undefined, '', 7, null, ['green'], '\ud800']) assert.equal(verdict(await call(team.port, { token: token('alice', { team: claim }) })), 'tokenUnacceptable')
  })
})
