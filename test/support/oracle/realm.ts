import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Environment, serviceEnvironment } from '../launch.ts'
import { AUDIENCE, ISSUER, SECRET, signToken } from '../tokens.ts'
import { forgers, KEY_SET, PUBLIC_SIGNERS, SECRET_SIGNERS, type Signer } from './keys.ts'

/** What a token of this realm allows. */
export interface Grant {
  readonly owner: string
  readonly read: boolean
  readonly write: boolean
}

type Json = Readonly<Record<string, unknown>>

/** One configuration of the service, and every good token that its keys have signed. */
export class Realm {
  readonly name: string
  readonly maxBodyBytes: number
  readonly scopes: boolean
  /** Whose pages may call. */
  readonly origins: readonly string[]
  readonly mayBeFull: boolean
  readonly #env: Readonly<Record<string, string>>
  readonly #signers: readonly Signer[]
  /** Any other token is good for nothing. */
  readonly grants = new Map<string, Grant>()
  #made = 0

  constructor(name: string, env: Readonly<Record<string, string>>, signers: readonly Signer[]) {
    this.name = name
    this.#env = env
    this.#signers = signers
    this.maxBodyBytes = Number(env['PLANTS_MAX_BODY_BYTES'] ?? 1024 * 1024)
    this.scopes = env['PLANTS_READ_SCOPE'] !== undefined
    this.origins = env['PLANTS_CORS_ORIGINS']?.split(',') ?? []
    this.mayBeFull = env['PLANTS_MAX_DATA_BYTES'] !== undefined
  }

  /** The service's environment; writes the files that it names into a directory. */
  environment(directory: string): Environment {
    const keySet = join(directory, 'keys.json')
    writeFileSync(keySet, KEY_SET)
    const hasSecret = this.#env['PLANTS_JWT_SECRET'] !== undefined
    return serviceEnvironment(join(directory, 'data'), {
      ...(hasSecret ? {} : { PLANTS_JWKS_FILE: keySet }),
      ...this.#env,
    })
  }

  /** A good token except for what is changed; `grant` says what it allows. */
  token(claims: Json, header: Json = {}, grant?: Grant): string {
    const signer = this.#signers[this.#made++ % this.#signers.length]
    if (!signer) throw new Error('no key')
    const token = write(signer, claims, header)
    if (grant) this.grants.set(token, grant)
    return token
  }

  tokenOf(owner: string, scopes = 'plants:read plants:write'): string {
    const may = (scope: string): boolean => !this.scopes || scopes.split(' ').includes(scope)
    const times = this.#made % 3 === 0 ? { iat: 1_700_000_000, nbf: 1_700_000_000 } : {}
    const grant = { owner, read: may('plants:read'), write: may('plants:write') }
    return this.token({ sub: owner, scope: scopes, ...times }, {}, grant)
  }

  /** Tokens that say what good ones say and are signed wrongly. */
  forged(sub: string): readonly [string, ...string[]] {
    const [first = '', ...more] = forgers(this.#signers).map((signer) =>
      write(signer, { sub, scope: 'plants:read plants:write' }),
    )
    return [first, ...more]
  }

  /** Every configuration that is tried. */
  static all(): readonly [Realm, ...Realm[]] {
    const secret = { PLANTS_JWT_SECRET: SECRET }
    const [one, several] = ['https://app.example', 'https://other.example,https://app.example']
    const pages = { PLANTS_CORS_ORIGINS: one, PLANTS_LOG_LEVEL: 'debug' }
    const scopes = { PLANTS_READ_SCOPE: 'plants:read', PLANTS_WRITE_SCOPE: 'plants:write' }
    const small = { ...scopes, PLANTS_MAX_BODY_BYTES: '5000', PLANTS_CORS_ORIGINS: several }
    const sizes = { PLANTS_MAX_DATA_BYTES: '300000', PLANTS_MAX_BODY_BYTES: '20000' }
    const full = { ...secret, ...sizes, PLANTS_CORS_ORIGINS: '*' }
    return [
      new Realm('secret', { ...secret, ...pages }, SECRET_SIGNERS),
      new Realm('public keys, scopes, small bodies', small, PUBLIC_SIGNERS),
      new Realm('full', full, SECRET_SIGNERS),
    ]
  }
}

/** In the year 2100. */
const EXP = 4_102_444_800

function write([own, sign]: Signer, claims: Json, header: Json = {}): string {
  const payload = { iss: ISSUER, aud: AUDIENCE, exp: EXP, ...claims }
  return signToken({ typ: 'at+jwt', ...own, ...header }, payload, sign)
}
