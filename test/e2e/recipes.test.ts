import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { Agent } from 'node:http'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { promisify } from 'node:util'
import { codeOf as codeIn, sectionOf } from '../support/documents.ts'
import { call, type CallOptions, post } from '../support/http.ts'
import { installed } from '../support/installed.ts'
import { launch, type Launched } from '../support/launch.ts'
import { preload } from '../support/process.ts'
import { ROOT } from '../support/release.ts'
import { LONG, sampled, THOROUGH } from '../support/scale.ts'
import { until } from '../support/time.ts'
import { temporaryDirectory } from '../support/service.ts'
import { SECRET, token } from '../support/tokens.ts'

const RECIPES = 'src/index.md'
const TOKEN = token('alice', { iss: 'https://issuer.example' })

/** Frameworks. */
const folder = THOROUGH ? await installed(join(ROOT, 'test/fixtures/frameworks')) : undefined
/** Test runners. */
const runners = THOROUGH ? await installed(join(ROOT, 'test/fixtures/realms')) : undefined

const codeOf = (heading: string, file: string): string => codeIn(RECIPES, heading, file)

/** A folder with this package, those of another folder, and the service of the document. */
async function project(t: TestContext, folder: string | undefined): Promise<string> {
  const cwd = await mkdtemp(join(folder ?? (await temporaryDirectory()), 'project-'))
  t.after(() => rm(cwd, { recursive: true, force: true }))
  // Without it Jest also runs the tests of other projects in that folder, as a killed run leaves.
  await writeFile(join(cwd, 'package.json'), '{}')
  await mkdir(join(cwd, 'node_modules'))
  await symlink(ROOT, join(cwd, 'node_modules/plant-store'))
  await symlink(join(ROOT, 'node_modules/jose'), join(cwd, 'node_modules/jose'))
  const service = codeOf('Embedding plant-store in a Node program', 'plants.mjs')
  await writeFile(join(cwd, 'plants.mjs'), service)
  return cwd
}

/** Prints the port of each server that listens on TCP. */
const PRINT_PORTS = await preload(`
  import { Server } from 'node:net'
  const { emit } = Server.prototype
  Server.prototype.emit = function (name, ...rest) {
    const port = name === 'listening' && this.address().port
    if (port) console.log('port', port)
    return emit.call(this, name, ...rest)
  }`)

function start(cwd: string, file: string): Launched {
  const env = { JWT_SECRET: SECRET, PORT: '0', ...PRINT_PORTS }
  return launch(env, { main: join(cwd, file), args: [], cwd })
}

function portsOf({ output }: Launched): readonly number[] {
  return [...output().matchAll(/^port (\d+)$/gm)].map(([, port]) => Number(port))
}

/** Those that need no framework. */
const WITHOUT = ['node:http', 'From CommonJS']
const NO_REQUIRE = process.versions.node.startsWith('22.11.') && 'Node 22.11 has no such require'

const SERVERS = [...WITHOUT, 'Express 4', 'Express 5', 'Fastify 5', 'Hono 4 on Node']
for (const name of sampled(SERVERS, 6)) {
  const heading = name.startsWith('Express') ? 'Express 4 and 5' : name
  const isCommonJs = heading === 'From CommonJS'
  const skip = isCommonJs && NO_REQUIRE
  test(`recipes: ${name} serves plants and health, and stops at once`, { skip }, async (t) => {
    const cwd = await project(t, folder)
    const express4 = join(folder ?? '', 'node_modules/express-4')
    if (name === 'Express 4') await symlink(express4, join(cwd, 'node_modules/express'))
    const file = isCommonJs ? 'server.cjs' : 'server.mjs'
    await writeFile(join(cwd, file), codeOf(heading, file))
    const server = start(cwd, file)
    await until('it listens', () => {
      assert.equal(server.child.exitCode, null, server.output())
      return portsOf(server).length > 0
    })
    const [port = assert.fail()] = portsOf(server)
    const agent = new Agent({ keepAlive: true })
    t.after(() => agent.destroy())
    const ask = async (more: CallOptions) => {
      const { status, text } = await call(port, { token: TOKEN, agent, ...more })
      return [status, text]
    }
    const large = 'x'.repeat(500_000)
    for (const name of ['Fern', large]) {
      const created = await post(port, { id: name.length, name }, { token: TOKEN, agent })
      assert.deepEqual([created.status, created.json()], [200, { name }])
    }
    assert.deepEqual(await ask({ path: '/plants?limit=1' }), [200, '[{"name":"Fern"}]'])
    assert.deepEqual(await ask({ method: 'HEAD' }), [200, ''])
    assert.deepEqual(await ask({ method: 'OPTIONS' }), [204, ''])
    const json = { 'content-type': 'application/json' }
    for (const [status, how] of [
      [401, { token: undefined }],
      [404, { path: '/plants/a/b/c' }],
      [405, { method: 'DELETE' }],
      [413, { method: 'POST', body: large.repeat(3), headers: json }],
      [415, { method: 'POST', body: 'Fern' }],
    ] as const) {
      const [got, text] = await ask(how)
      assert.equal(got, status, String(text))
      assert.match(String(text), new RegExp(`^{"error":${status}0`))
    }
    const ok = '{"status":"ok","checks":{"service":"ok","keys":"ok","storage":"ok"}}'
    if (!WITHOUT.includes(heading)) assert.deepEqual(await ask({ path: '/readyz' }), [200, ok])
    // The connection is open and idle.
    assert.equal((await ask({}))[0], 200)
    assert.equal(await server.kill('SIGTERM'), 0, server.output())
    for (const line of server.output().trim().split('\n'))
      assert.match(line, /^port |^{.*"request"/)
    assert.ok((await readdir(cwd)).includes('data'))
  })
}

test('recipes: without the variable of the secret, the program is refused', async (t) => {
  const cwd = await project(t, undefined)
  await writeFile(join(cwd, 'server.mjs'), codeOf('node:http', 'server.mjs'))
  const { exited, output } = launch({}, { main: join(cwd, 'server.mjs'), args: [], cwd })
  assert.equal(await exited, 1)
  assert.match(output(), /^ConfigError: jwtSecret .*must have at least 32 bytes, and has 0$/m)
  assert.equal((await readdir(cwd)).includes('data'), false)
})

test('recipes: the token of the document is valid', async (t) => {
  const cwd = await project(t, folder)
  await writeFile(join(cwd, 'token.mjs'), codeOf('Try it', 'token.mjs'))
  const { exited, output } = start(cwd, 'token.mjs')
  assert.equal(await exited, 0, output())
  const payload = output().split('.')[1] ?? ''
  const { exp, ...claims } = JSON.parse(Buffer.from(payload, 'base64url').toString()) as {
    exp: number
  }
  assert.deepEqual(claims, { iss: 'https://issuer.example', aud: 'plants', sub: 'alice' })
  assert.ok(exp > Date.now() / 1000)
})

/** Runs the tests of a folder as the document says below a heading. Returns what is printed. */
async function runTests(cwd: string, heading: string): Promise<string> {
  const [, command = ''] = /Run it with `(.+?)`/.exec(sectionOf(RECIPES, heading)) ?? []
  const installed = join(runners ?? '', 'node_modules/.bin')
  const path = [dirname(process.execPath), installed, process.env['PATH']].join(':')
  const env = { PATH: path, TMPDIR: cwd }
  const ran = promisify(execFile)('sh', ['-c', command.replace('npx ', '')], { cwd, env })
  // What a failing command printed is in its error.
  const { stdout, stderr } = await ran.catch((error: { stdout: string; stderr: string }) => error)
  return stdout + stderr
}

for (const [heading, file] of Object.entries({
  'With node:test': 'plants.test.mjs',
  'With Vitest': 'plants.test.mjs',
  'With Jest': 'plants.test.cjs',
})) {
  const title = `recipes: ${heading} an application is tested, and leaves no file`
  test(title, { skip: LONG }, async (t) => {
    const cwd = await project(t, runners)
    const double = 'plants-for-tests.mjs'
    await writeFile(join(cwd, double), codeOf('In your tests', double))
    await writeFile(join(cwd, file), codeOf(heading, file))
    const before = await readdir(cwd)
    assert.match(await runTests(cwd, heading), /^.* (pass 1|1 passed)\b/m)
    // Jest has its cache there.
    const left = (await readdir(cwd)).filter((name) => name !== 'jest_0')
    assert.deepEqual(left, before)
  })
}
