import { createECDH, createHmac, createPrivateKey, createPublicKey, type KeyObject, sign } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { AUDIENCE, ISSUER, SECRET } from '../../test/support/tokens.ts'

/** What a token that was made here is good for. */
export interface Grant {
  readonly owner: string
  readonly read: boolean
  readonly write: boolean
}

type Json = Readonly<Record<string, unknown>>
type Signer = (input: string) => Buffer

/** One configuration of the service, and every token that its keys have signed for somebody. All keys are fixed, so that what was sent can be sent again. */
export class Realm {
  readonly name: string
  readonly maxBodyBytes: number
  readonly scopes: boolean
  readonly mayBeFull: boolean
  readonly #env: Readonly<Record<string, string>>
  readonly #keys: readonly (readonly [header: Json, signer: Signer])[]
  /** Any other token is good for nothing. */
  readonly grants = new Map<string, Grant>()
  #made = 0

  constructor(name: string, env: Readonly<Record<string, string>>, keys: readonly (readonly [Json, Signer])[]) {
    this.name = name
    this.#env = env
    this.#keys = keys
    this.maxBodyBytes = Number(env['PLANTS_MAX_BODY_BYTES'] ?? 1024 * 1024)
    this.scopes = env['PLANTS_READ_SCOPE'] !== undefined
    this.mayBeFull = env['PLANTS_MAX_DATA_BYTES'] !== undefined
  }

  /** The service's environment; what it needs of files is put into a directory. */
  environment(directory: string): Record<string, string> {
    const keySet = join(directory, 'keys.json')
    writeFileSync(keySet, KEY_SET)
    return {
      PLANTS_ISSUER: ISSUER,
      PLANTS_AUDIENCE: AUDIENCE,
      ...(this.#env['PLANTS_JWT_SECRET'] === undefined ? { PLANTS_JWKS_FILE: keySet } : {}),
      ...this.#env,
    }
  }

  /** A token that is good, but for what is changed; `grant` says for what. */
  token(claims: Json, header: Json = {}, grant?: Grant): string {
    const [own, signer] = this.#keys[this.#made++ % this.#keys.length] ?? ([{}, () => Buffer.alloc(0)] as const)
    const part = (value: Json): string => Buffer.from(JSON.stringify(value)).toString('base64url')
    const input = `${part({ typ: 'at+jwt', ...own, ...header })}.${part({ iss: ISSUER, aud: AUDIENCE, exp: EXP, ...claims })}`
    const token = `${input}.${signer(input).toString('base64url')}`
    if (grant) this.grants.set(token, grant)
    return token
  }

  tokenOf(owner: string, scopes = 'plants:read plants:write'): string {
    const may = (scope: string): boolean => !this.scopes || scopes.split(' ').includes(scope)
    return this.token({ sub: owner, scope: scopes, ...(this.#made % 3 === 0 ? { iat: 1_700_000_000, nbf: 1_700_000_000 } : {}) }, {}, { owner, read: may('plants:read'), write: may('plants:write') })
  }

  /** Its own tokens and nobody else's plants. */
  static all(): readonly [Realm, ...Realm[]] {
    return [
      new Realm('secret', { PLANTS_JWT_SECRET: SECRET }, [[{ alg: 'HS256' }, hmac]]),
      new Realm('public keys, scopes, small bodies', { PLANTS_READ_SCOPE: 'plants:read', PLANTS_WRITE_SCOPE: 'plants:write', PLANTS_MAX_BODY_BYTES: '5000' }, PUBLIC),
      new Realm('full', { PLANTS_JWT_SECRET: SECRET, PLANTS_MAX_DATA_BYTES: '300000', PLANTS_MAX_BODY_BYTES: '20000' }, [[{ alg: 'HS256' }, hmac]]),
    ]
  }
}

/** In the year 2100. */
const EXP = 4_102_444_800

const hmac: Signer = (input) => createHmac('sha256', SECRET).update(input).digest()

// RFC 8410 §7: what stands before the 32 bytes of a private key of Ed25519 in PKCS #8.
const ed25519 = createPrivateKey({ format: 'der', type: 'pkcs8', key: Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), Buffer.alloc(32, 7)]) })
const p256 = p256Key(Buffer.alloc(32, 9))
const PUBLIC: readonly (readonly [Json, Signer])[] = [
  [{ alg: 'EdDSA', kid: 'ed' }, (input) => sign(null, Buffer.from(input), ed25519)],
  [{ alg: 'ES256', kid: 'ec' }, (input) => sign('sha256', Buffer.from(input), { key: p256, dsaEncoding: 'ieee-p1363' })],
  // One key of the set fits each algorithm.
  [{ alg: 'ES256' }, (input) => sign('sha256', Buffer.from(input), { key: p256, dsaEncoding: 'ieee-p1363' })],
]
const KEY_SET = JSON.stringify({ keys: [{ ...createPublicKey(ed25519).export({ format: 'jwk' }), kid: 'ed' }, { ...createPublicKey(p256).export({ format: 'jwk' }), kid: 'ec' }] })

function p256Key(d: Buffer): KeyObject {
  const curve = createECDH('prime256v1')
  curve.setPrivateKey(d)
  const point = curve.getPublicKey()
  const text = (bytes: Buffer): string => bytes.toString('base64url')
  return createPrivateKey({ format: 'jwk', key: { kty: 'EC', crv: 'P-256', d: text(d), x: text(point.subarray(1, 33)), y: text(point.subarray(33)) } })
}
