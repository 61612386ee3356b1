import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { chmodSync, chownSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { ConfigError, createPlantService } from '../../dist/index.js'
import { runtimeRefusal } from '../../dist/runtime.js'
import { read } from '../support/documents.ts'
import { launch, MAIN, serviceEnvironment } from '../support/launch.ts'
import { preload, run } from '../support/process.ts'
import { LONG, sampled, THOROUGH } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { SECRET } from '../support/tokens.ts'

/** What a start prints that fails, and its status. */
async function failedStart(
  env: Readonly<Record<string, string>>,
  data?: string,
  prefix?: string[],
) {
  const directory = data ?? join(await temporaryDirectory(), 'data')
  const { exited, output } = launch(serviceEnvironment(directory, env), prefix ? { prefix } : {})
  return { status: await exited, output: output() }
}

/** Makes a process read this instead of the WebAssembly of sql.js. */
const withWasm = (content: string): string => `
  import fs from 'node:fs'
  import { syncBuiltinESMExports } from 'node:module'
  const isIt = (path) => String(path).endsWith('sql-wasm.wasm')
  const { readFileSync, readFile } = fs
  fs.readFileSync = (path, ...rest) =>
    isIt(path) ? ${content} : readFileSync(path, ...rest)
  fs.readFile = (path, ...rest) =>
    isIt(path) ? rest.at(-1)(null, ${content}) : readFile(path, ...rest)
  syncBuiltinESMExports()`

// Under this limit Node 22 ends at its own WebAssembly, and later ones reserve less and start.
const is20 = process.version.startsWith('v20.')
const limits = { skip: is20 ? LONG : 'SKIPPED: it is Node 20 that needs more' }

test('surroundings: a limit of address space is told in one line', limits, async () => {
  const limited = ['sh', '-c', 'ulimit -v 4000000; exec "$0" "$@"']
  const { status, output } = await failedStart({}, undefined, limited)
  assert.equal(status, 1)
  assert.match(output, /^plant-store: SQLite cannot be loaded: .*[Mm]emory.*\n$/)
  assert.match(output, /address space, which is not memory: lift ulimit -v or LimitAS=\n$/)
})

/** By what is wrong with it: what is read, and what the start says. */
const BROKEN = {
  damaged: [`Buffer.from('no wasm')`, /WebAssembly.* magic word .*; .*sql\.js is .*damaged/],
  missing: [`readFileSync('/no/such/file.wasm')`, /ENOENT: /],
} as const
for (const [what, [content, told]] of sampled(Object.entries(BROKEN), 2))
  test(`surroundings: a file of sql.js that is ${what} is told with its cure`, async () => {
    const { status, output } = await failedStart(await preload(withWasm(content)))
    assert.equal(status, 1)
    assert.match(output, /^plant-store: SQLite cannot be loaded: .*: install this release again\n$/)
    assert.match(output, told)
  })

for (const flag of ['--jitless', '--no-expose-wasm']) {
  // Node 24 has no such flag; with it, Node 22 cannot load its own HTTP.
  const args = [flag, '--input-type=module', '--eval', "import 'node:http'"]
  const isRefused = THOROUGH && spawnSync(process.execPath, args).status !== 0
  const known = { skip: isRefused ? `SKIPPED: this Node does not serve with ${flag}` : LONG }
  test(`surroundings: with ${flag} the start says how to have WebAssembly`, known, async () => {
    const prefix = ['sh', '-c', `exec "$0" ${flag} "$@"`]
    const { status, output } = await failedStart({}, undefined, prefix)
    assert.equal(status, 1)
    const [last = ''] = output.trimEnd().split('\n').slice(-1)
    assert.match(last, /^plant-store: SQLite cannot be loaded: WebAssembly is not defined; /)
    assert.match(last, /; Node has no WebAssembly: start it without --jitless, .*NODE_OPTIONS$/)
  })
}

test('surroundings: a directory of another user is told with the own uid and gid', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('SKIPPED: only root can become another user')
  const parent = await temporaryDirectory()
  chmodSync(parent, 0o755)
  const data = join(parent, 'volume')
  mkdirSync(data, { mode: 0o755 })
  chownSync(data, 1234, 1234)
  const prefix = ['setpriv', '--reuid=65532', '--regid=65531', '--clear-groups']
  for (const each of sampled([join(data, 'below'), data], 2)) {
    const { status, output } = await failedStart({}, each, prefix)
    assert.equal(status, 1)
    assert.match(output, /EACCES: permission denied.* \(this process is uid 65532, gid 65531\)\n$/)
  }
})

const engines = read('package.json').match(/"node": ".*"/)?.[0] ?? assert.fail('engines')
const [of20, of22] = engines.match(/[0-9.]{5,}/g) ?? []
const NEEDED = `Node ${of20} or later, ${of22} or later, or 24 or later is needed`

const FINE = ['20.19.2', '20.20.0', '22.11.0', '24.0.0', '30.0.0'] as const
const OLD = ['18.20.8', '20.18.3', '20.19.1', '21.99.0', '22.10.9', '23.11.1'] as const

// Other runtimes have Node's version beside their own.
for (const [node, other] of [
  ...[...FINE, ...OLD].map((each) => [each, undefined] as const),
  ['24.0.0', 'deno'],
  ['24.0.0', 'bun'],
] as const) {
  const isFine = !other && FINE.some((each) => each === node)
  test(`surroundings: ${other ?? 'Node'} ${node} is ${isFine ? 'fine' : 'refused'}`, async (t) => {
    const { versions } = process
    t.after(() => Object.defineProperty(process, 'versions', { value: versions }))
    const value = { ...versions, node, ...(other && { [other]: '2.5.0' }) }
    Object.defineProperty(process, 'versions', { value })
    const [status, message] = other
      ? [1, `this is ${other} 2.5.0, not Node: ${NEEDED}`]
      : [2, `${NEEDED}, and this is ${node}`]
    assert.deepEqual(runtimeRefusal(), isFine ? undefined : { status, message })
    const embedding = () => createPlantService({ issuer: 'i', audience: 'a', jwtSecret: SECRET })
    if (isFine) await embedding().close()
    else assert.throws(embedding, new ConfigError([message]))
  })
}

test('surroundings: a Node that is too old ends with one line, before any import', async () => {
  // A static import is loaded before the first line runs.
  const imported = /^\s*(?:import|export)\b[^('"]*['"](.*)['"]/gm
  const staticImportsOf = (path: string): readonly string[] =>
    [...readFileSync(path, 'utf8').matchAll(imported)].map(([, target = '']) => target)
  const imports = ['./cli/signals.js', './runtime.js']
  assert.deepEqual(staticImportsOf(MAIN), imports)
  for (const each of imports) assert.deepEqual(staticImportsOf(join(MAIN, '..', each)), [])
  const old = await preload(`
    const value = { ...process.versions, node: '18.20.8' }
    Object.defineProperty(process, 'versions', { value })`)
  const stderr = `plant-store: ${NEEDED}, and this is 18.20.8\n`
  assert.deepEqual(await run(['--version'], old), { status: 2, stdout: '', stderr })
})
