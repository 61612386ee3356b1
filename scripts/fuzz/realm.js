import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { AUDIENCE, ISSUER, SECRET } from '../../test/support/tokens.js';
import { forgers, KEY_SET, PUBLIC_SIGNERS, SECRET_SIGNERS } from './keys.js';
/** One configuration of the service, and every token that its keys have signed for somebody. */
export class Realm {
    name;
    maxBodyBytes;
    scopes;
    mayBeFull;
    #env;
    #signers;
    /** Any other token is good for nothing. */
    grants = new Map();
    #made = 0;
    constructor(name, env, signers) {
        this.name = name;
        this.#env = env;
        this.#signers = signers;
        this.maxBodyBytes = Number(env['PLANTS_MAX_BODY_BYTES'] ?? 1024 * 1024);
        this.scopes = env['PLANTS_READ_SCOPE'] !== undefined;
        this.mayBeFull = env['PLANTS_MAX_DATA_BYTES'] !== undefined;
    }
    /** The service's environment; what it needs of files is put into a directory. */
    environment(directory) {
        const keySet = join(directory, 'keys.json');
        writeFileSync(keySet, KEY_SET);
        return {
            PLANTS_ISSUER: ISSUER,
            PLANTS_AUDIENCE: AUDIENCE,
            ...(this.#env['PLANTS_JWT_SECRET'] === undefined ? { PLANTS_JWKS_FILE: keySet } : {}),
            ...this.#env,
        };
    }
    /** A token that is good, but for what is changed; `grant` says for what. */
    token(claims, header = {}, grant) {
        const signer = this.#signers[this.#made++ % this.#signers.length];
        if (!signer)
            throw new Error('no key');
        const token = write(signer, claims, header);
        if (grant)
            this.grants.set(token, grant);
        return token;
    }
    tokenOf(owner, scopes = 'plants:read plants:write') {
        const may = (scope) => !this.scopes || scopes.split(' ').includes(scope);
        return this.token({
            sub: owner,
            scope: scopes,
            ...(this.#made % 3 === 0 ? { iat: 1_700_000_000, nbf: 1_700_000_000 } : {}),
        }, {}, { owner, read: may('plants:read'), write: may('plants:write') });
    }
    /** Tokens that say what good ones say, and that no key has signed as it should. */
    forged(sub) {
        const [first = '', ...more] = forgers(this.#signers).map((signer) => write(signer, { sub, scope: 'plants:read plants:write' }));
        return [first, ...more];
    }
    /** Its own tokens and nobody else's plants. */
    static all() {
        return [
            new Realm('secret', { PLANTS_JWT_SECRET: SECRET }, SECRET_SIGNERS),
            new Realm('public keys, scopes, small bodies', {
                PLANTS_READ_SCOPE: 'plants:read',
                PLANTS_WRITE_SCOPE: 'plants:write',
                PLANTS_MAX_BODY_BYTES: '5000',
            }, PUBLIC_SIGNERS),
            new Realm('full', {
                PLANTS_JWT_SECRET: SECRET,
                PLANTS_MAX_DATA_BYTES: '300000',
                PLANTS_MAX_BODY_BYTES: '20000',
            }, SECRET_SIGNERS),
        ];
    }
}
/** In the year 2100. */
const EXP = 4_102_444_800;
function write([own, sign], claims, header = {}) {
    const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const input = `${part({ typ: 'at+jwt', ...own, ...header })}.${part({ iss: ISSUER, aud: AUDIENCE, exp: EXP, ...claims })}`;
    return `${input}.${sign(input).toString('base64url')}`;
}
