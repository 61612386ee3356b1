import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { promisify } from 'node:util'
import { readOptions } from '../../dist/settings/read.js'
import { VARIABLES } from '../../dist/settings/table.js'
import { ConfigError } from '../../dist/errors.js'
import { call } from '../support/http.ts'
import { hovers } from '../support/hover.ts'
import { projectRelease, ROOT } from '../support/release.ts'
import { temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { until } from '../support/time.ts'

/** The package must not read it: with these variables a service refuses to start. */
const ENVIRONMENT = {
  PATH: process.env['PATH'] ?? '',
  PLANTS_LISTEN: 'nonsense',
  PLANTS_UNKNOWN: 'x',
  PLANTS_LOG_LEVEL: 'debug',
  // The compiler ends before collecting garbage is worth its time.
  GOGC: 'off',
}
const STRICT = [
  '--singleThreaded',
  '--strict',
  '--exactOptionalPropertyTypes',
  '--noUncheckedIndexedAccess',
  '--skipLibCheck',
  'false',
  '--target',
  'es2023',
  // A program on a server has no DOM.
  '--lib',
  'es2023',
  '--types',
  'node',
]

// The project's manifest, which has this member.
const { dependencies: PINNED } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8')) as {
  readonly dependencies: Readonly<Record<string, string>>
}
const project = join(await temporaryDirectory(), 'project')
const modules = join(ROOT, 'node_modules')
const TSC = join(modules, '.bin/tsc')
await mkdir(project)
const { package: tarball } = await projectRelease()
// The two dependencies come from this project's folder: no registry is asked.
const dependencies = {
  'plant-store': `file:${tarball}`,
  jose: `file:${join(modules, 'jose')}`,
  'sql.js': `file:${join(modules, 'sql.js')}`,
}
await writeFile(join(project, 'package.json'), JSON.stringify({ private: true, dependencies }))
await start(
  'npm',
  ['install', '--offline', '--ignore-scripts', '--no-audit', '--no-fund', '--no-install-links'],
  process.env,
)
await mkdir(join(project, 'node_modules/@types'))
await symlink(join(modules, '@types/node'), join(project, 'node_modules/@types/node'))
await cp(join(ROOT, 'test/fixtures/embedding'), project, { recursive: true })

async function start(
  program: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = ENVIRONMENT,
): Promise<string> {
  try {
    return (await promisify(execFile)(program, args, { cwd: project, env })).stdout
  } catch (error) {
    const said =
      error instanceof Error && 'stdout' in error && 'stderr' in error
        ? `${error.message}\n${String(error.stdout)}\n${String(error.stderr)}`
        : error
    throw new Error(`${program} ${args.join(' ')}: ${String(said)}`)
  }
}

/** Runs a line without a terminal until it serves, sends a request, and stops it. */
async function serves(t: TestContext, line: string, cwd: string, more = {}): Promise<void> {
  const [program = '', ...args] = line.split(' ')
  const child = spawn(program, args, {
    cwd,
    env: {
      ...more,
      PATH: process.env['PATH'],
      PLANTS_DATA: 'data',
      PLANTS_LISTEN: 'unix:plants.sock',
      PLANTS_ADMIN_LISTEN: 'off',
    },
    // Its own process group: a terminal sends the signal to all of a group.
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const closed = once(child, 'close')
  const signal = (name: NodeJS.Signals): boolean => process.kill(-(child.pid ?? 0), name)
  t.after(() => child.exitCode === null && child.signalCode === null && signal('SIGKILL'))
  let log = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => (log += text))
  await until('it listens', () => log.includes('"message":"listening"'))
  assert.equal((await call(join(cwd, 'plants.sock'), { token: undefined })).status, 401)
  signal('SIGINT')
  await closed
  assert.match(log, /"message":"stopped"/)
}

test('package: npx plant-store serve --dev serves, and Ctrl-C stops it', (t) =>
  serves(t, 'npx --offline plant-store serve --dev', project))

test('package: the line of the README for npx works where nothing is installed', async (t) => {
  const readme = await readFile(join(ROOT, 'README.md'), 'utf8')
  const [line] = /^npx .* serve --dev$/m.exec(readme) ?? assert.fail('there is no line')
  const folder = await temporaryDirectory()
  await symlink(dirname(tarball), join(folder, 'release'))
  // In the place of npm's registry. What it has comes from this project's folder.
  const packed = new Map<string, Buffer>()
  const registry = await serving(t, (request, response) => {
    const [, name = '', file] = (request.url ?? '').split('/')
    const version = PINNED[name]
    // npm looks for a newer npm, too.
    if (version === undefined) return void response.writeHead(404).end()
    if (file !== undefined) return void response.end(packed.get(name))
    const dist = { tarball: `${registry}/${name}/file` }
    const versions = { [version]: { name, version, dist } }
    response.end(JSON.stringify({ name, 'dist-tags': { latest: version }, versions }))
  })
  for (const name of Object.keys(PINNED)) {
    const args = ['pack', '--ignore-scripts', '--json', '--pack-destination', folder]
    const said = await start('npm', [...args, join(modules, name)], process.env)
    // npm's documented report.
    const [{ filename }] = JSON.parse(said) as readonly [{ readonly filename: string }]
    packed.set(name, await readFile(join(folder, filename)))
  }
  const HOME = join(folder, 'home')
  await serves(t, line, folder, { HOME, npm_config_registry: registry })
})

test('package: from TypeScript it compiles with the strictest checks', async () => {
  await start(TSC, [
    ...STRICT,
    '--module',
    'esnext',
    '--moduleResolution',
    'bundler',
    '--noEmit',
    'app.ts',
  ])
  await writeFile(
    join(project, 'package.json'),
    JSON.stringify({ private: true, type: 'module', dependencies }),
  )
  await start(TSC, [
    ...STRICT,
    '--module',
    'nodenext',
    '--moduleResolution',
    'nodenext',
    '--outDir',
    'out',
    'app.ts',
  ])
})

test('package: it runs from TypeScript, JavaScript and CommonJS, and ends', async () => {
  const both = "import('./out/app.js').then(() => import('./app.mjs'))"
  await writeFile(join(project, 'all.cjs'), `${both}.then(() => require('./app.cjs'))`)
  const said = await start(process.execPath, ['all.cjs'])
  assert.equal(said.match(/^done$/gm)?.length, 3, said)
})

test('package: an editor shows bounds and default of every option', async () => {
  const options = VARIABLES.map(({ option, fallback }) => [option, fallback] as const)
  const source = `import type { PlantServiceConfig } from 'plant-store'
declare const config: PlantServiceConfig
${options.map(([name]) => `config.${name};`).join('\n')}`
  const shown = await hovers(
    TSC,
    join(project, 'editor.ts'),
    source,
    options.map(([name]) => `${name};`),
  )
  const allWrong = Object.fromEntries(options.map(([name]) => [name, NaN]))
  assert.throws(
    () => readOptions(allWrong),
    (error) => {
      assert.ok(error instanceof ConfigError)
      for (const [at, [name, fallback]] of options.entries()) {
        const text = shown[at] ?? ''
        assert.match(text, new RegExp(`${name}\\b[^]*(Required: |@defaultValue)`))
        assert.ok(text.includes(fallback), `${fallback}: ${text}`)
        const problem = error.problems.find((each) => each.startsWith(`${name} `))
        const [bounds = ''] = /from \d+ to \d+/.exec(problem ?? assert.fail(name)) ?? []
        assert.ok(text.includes(bounds), `${bounds}: ${text}`)
      }
      return true
    },
  )
})
